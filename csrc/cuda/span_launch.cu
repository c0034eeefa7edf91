// Launches of the flat-vector ops, instantiated for every span of ops/vector_ops.h.
#include "cuda/span_launch.h"
#include "kernels/ala_step.h"
#include "kernels/ema.h"
#include "kernels/grid.h"
#include "kernels/sgd_step.h"

namespace fededge::cuda {
namespace {

constexpr int kThreads = SpanPlan::kThreads;

template <class Span>
__global__ void __launch_bounds__(kThreads) run(Span span, int64_t n) {
  stride_over(span, n, blockIdx.x * int64_t{kThreads} + threadIdx.x, gridDim.x * int64_t{kThreads});
}

}  // namespace

template <class Span>
void launch_span(int64_t n, const Span& span, cudaStream_t stream) {
  if (n == 0) return;  // a grid without blocks is an error
  run<<<static_cast<unsigned>(SpanPlan::blocks(n)), kThreads, 0, stream>>>(span, n);
}

#define FEDEDGE_SPAN(...) \
  template void launch_span<__VA_ARGS__>(int64_t, const __VA_ARGS__&, cudaStream_t)
#define FEDEDGE_SGD_STEPS(kBuffer, kAnchor)              \
  FEDEDGE_SPAN(SgdStep<kBuffer, kAnchor, false, false>); \
  FEDEDGE_SPAN(SgdStep<kBuffer, kAnchor, false, true>);  \
  FEDEDGE_SPAN(SgdStep<kBuffer, kAnchor, true, false>);  \
  FEDEDGE_SPAN(SgdStep<kBuffer, kAnchor, true, true>)

FEDEDGE_SPAN(AlaStep);
FEDEDGE_SPAN(Ema);
FEDEDGE_SGD_STEPS(false, false);
FEDEDGE_SGD_STEPS(false, true);
FEDEDGE_SGD_STEPS(true, false);
FEDEDGE_SGD_STEPS(true, true);

}  // namespace fededge::cuda
