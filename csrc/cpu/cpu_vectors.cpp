#include "ops/vector_ops.h"

#include "cpu/parallel_spans.h"

namespace fededge::cpu {
namespace {

struct Cpu {
  template <class Span>
  static void for_each(const at::Tensor& written, const Span& span) {
    cpu::for_each(written.numel(), span);
  }
};

TORCH_LIBRARY_IMPL(fededge, CPU, m) { register_vectors<Cpu>(m); }

}  // namespace
}  // namespace fededge::cpu
