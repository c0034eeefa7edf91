// The spans as a device runs them: every thread of a grid strides over its elements.
#include "kernels/accumulate.h"
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

template <typename Acc>
void accumulate(Acc* acc, const void* x, int kind, double weight, int64_t n, int64_t threads) {
  const auto w = static_cast<Acc>(weight);
  if (kind == 0) run(Accumulate<Acc, float>{acc, static_cast<const float*>(x), w}, n, threads);
  if (kind == 1) run(Accumulate<Acc, Half>{acc, static_cast<const Half*>(x), w}, n, threads);
  if (kind == 2) run(Accumulate<Acc, BFloat16>{acc, static_cast<const BFloat16*>(x), w}, n, threads);
}

template <bool kBuffer, bool kAnchor, bool kBias, bool kMask>
void sgd_step(const SgdVectors& v, int64_t n, int64_t threads) {
  run(SgdStep<kBuffer, kAnchor, kBias, kMask>{v}, n, threads);
}

}  // namespace

extern "C" {

void accumulate_float(float* acc, const void* x, int kind, double weight, int64_t n,
                      int64_t threads) {
  accumulate(acc, x, kind, weight, n, threads);
}

void accumulate_double(double* acc, const void* x, int kind, double weight, int64_t n,
                       int64_t threads) {
  accumulate(acc, x, kind, weight, n, threads);
}

void accumulate_int8(double* acc, const int8_t* q, const int64_t* ends, const float* scales,
                     int64_t tensors, double weight, int64_t n, int64_t threads) {
  run(AccumulateInt8<double>{acc, q, weight, ends, scales, tensors}, n, threads);
}

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
