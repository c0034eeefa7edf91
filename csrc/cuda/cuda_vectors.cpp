#include "ops/vector_ops.h"

#include "cuda/current_stream.h"
#include "cuda/span_launch.h"

namespace fededge::cuda {
namespace {

struct Cuda {
  template <class Span>
  static void for_each(const at::Tensor& written, const Span& span) {
    on_device(written, [&](cudaStream_t stream) { launch_span(written.numel(), span, stream); });
  }
};

TORCH_LIBRARY_IMPL(fededge, CUDA, m) { register_vectors<Cuda>(m); }

}  // namespace
}  // namespace fededge::cuda
