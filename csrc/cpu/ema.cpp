#include "kernels/ema.h"

#include <torch/library.h>

#include "cpu/spans.h"
#include "cpu/tensors.h"

namespace fededge::cpu {
namespace {

void ema_(const at::Tensor& target, const at::Tensor& source, double mu) {
  check_vector("ema_", "target", target, target.numel());
  const float* from = input("ema_", "source", source, target);
  for_each(target.numel(), Ema{output<float>(target), from, static_cast<float>(mu),
                               static_cast<float>(1.0 - mu)});
}

TORCH_LIBRARY_IMPL(fededge, CPU, m) { m.impl("ema_", TORCH_FN(ema_)); }

}  // namespace
}  // namespace fededge::cpu
