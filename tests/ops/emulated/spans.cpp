// The spans as a device runs them: every thread of a grid strides over its elements.
#include "kernels/ala_step.h"
#include "kernels/ema.h"
#include "kernels/grid.h"
#include "kernels/sgd_step.h"

using namespace fededge;

namespace {

// The threads touch different elements and never meet: any order will do, so take the last first.
template <class Span>
void run(const Span& span, int64_t n, int64_t threads) {
  for (int64_t i = threads - 1; i >= 0; --i) stride_over(span, n, i, threads);
}

template <bool kBuffer, bool kAnchor, bool kBias, bool kMask>
void sgd_step(const SgdVectors& v, int64_t n, int64_t threads) {
  run(SgdStep<kBuffer, kAnchor, kBias, kMask>{v}, n, threads);
}

}  // namespace

extern "C" {

void ema(float* target, const float* source, double mu, int64_t n, int64_t threads) {
  run(Ema{target, source, static_cast<float>(mu), static_cast<float>(1 - mu)}, n, threads);
}

void ala_step(float* W, float* mixed, const float* grad, const float* local, const float* received,
              double eta, int64_t n, int64_t threads) {
  run(AlaStep{W, mixed, grad, local, received, static_cast<float>(eta)}, n, threads);
}

void sgd_step(float* w, const float* grad, float* buffer, const float* anchor, const float* bias,
              const float* mask, float lr, float momentum, float weight_decay, float kappa,
              int64_t n, int64_t threads) {
  const SgdVectors v{w, grad, buffer, anchor, bias, mask, lr, momentum, weight_decay, kappa};
  if (mask != nullptr) {
    sgd_step<true, true, true, true>(v, n, threads);
  } else {
    sgd_step<true, true, true, false>(v, n, threads);
  }
}

}  // extern "C"
