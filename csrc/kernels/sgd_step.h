// One step of SGD with momentum, weight decay and an affine correction of the gradient.
#pragma once

#include "kernels/numbers/host_device.h"
#include "kernels/numbers/select.h"

namespace fededge {

struct SgdVectors {
  float* w;
  const float* grad;
  float* buffer;        // momentum, or null
  const float* anchor;  // or null
  const float* bias;    // or null
  const float* mask;    // or null: every element is trained
  float lr;
  float momentum;
  float weight_decay;
  float kappa;
};

// g = grad + weight_decay * w + kappa * (w - anchor) + bias
// buffer = momentum * buffer + g
// w -= lr * buffer            (lr * g without momentum)
//
// Template arguments say which vectors are present, so that the loop has no branches.
template <bool kBuffer, bool kAnchor, bool kBias, bool kMask>
struct SgdStep {
  SgdVectors v;

  FEDEDGE_HD void operator()(int64_t i) const {
    const float w = v.w[i];
    float g = v.grad[i] + v.weight_decay * w;
    if constexpr (kAnchor) g += v.kappa * (w - v.anchor[i]);
    if constexpr (kBias) g += v.bias[i];
    bool moves = true;
    if constexpr (kMask) moves = v.mask[i] != 0.0f;
    if constexpr (kBuffer) {
      const float old = v.buffer[i];
      g += v.momentum * old;
      v.buffer[i] = select(moves, g, old);
    }
    v.w[i] = select(moves, w - v.lr * g, w);
  }
};

}  // namespace fededge
