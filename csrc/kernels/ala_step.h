// One step of FedALA's element-wise weights, and the mixed model.
#pragma once

#include "kernels/numbers/host_device.h"
#include "kernels/numbers/select.h"

namespace fededge {

// W = clip(W - eta * g * (received - local), 0, 1);  mixed = local + (received - local) * W
struct AlaStep {
  float* W;
  float* mixed;
  const float* grad;
  const float* local;
  const float* received;
  float eta;

  FEDEDGE_HD void operator()(int64_t i) const {
    const float change = received[i] - local[i];
    float w = W[i] - eta * (grad[i] * change);
    w = select(w < 0.0f, 0.0f, w);  // in this order NaN is preserved
    w = select(w > 1.0f, 1.0f, w);
    W[i] = w;
    mixed[i] = local[i] + change * w;
  }
};

}  // namespace fededge
