#include "kernels/accumulate.h"

#include <torch/library.h>

#include "cpu/spans.h"
#include "cpu/tensors.h"

namespace fededge::cpu {
namespace {

template <typename Acc>
void run(const at::Tensor& acc, const float* x, double weight) {
  for_each(acc.numel(), Accumulate<Acc>{output<Acc>(acc), x, static_cast<Acc>(weight)});
}

void accumulate_(const at::Tensor& acc, const at::Tensor& x, double weight) {
  const bool wide = acc.scalar_type() == at::kDouble;
  check_vector("accumulate_", "acc", acc, acc.numel(), wide ? at::kDouble : at::kFloat);
  const float* from = input("accumulate_", "x", x, acc);
  if (wide) {
    run<double>(acc, from, weight);
  } else {
    run<float>(acc, from, weight);
  }
}

TORCH_LIBRARY_IMPL(fededge, CPU, m) { m.impl("accumulate_", TORCH_FN(accumulate_)); }

}  // namespace
}  // namespace fededge::cpu
