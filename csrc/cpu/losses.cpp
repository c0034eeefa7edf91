#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include "cpu/rows.h"
#include "ops/distillation.h"
#include "ops/label_loss.h"
#include "ops/probability_sums.h"

namespace fededge::cpu {
namespace {

struct Cpu {
  template <class Kernel>
  static at::Tensor mean(const Rows& rows, const Kernel& kernel, const at::Tensor& z) {
    const double total = for_each_row(rows.rows, rows.columns, kernel);
    return at::scalar_tensor(total / static_cast<double>(rows.rows), z.options());
  }

  template <class Kernel>
  static void by_class(const Rows& rows, const Kernel& kernel, const at::Tensor&) {
    for_each_row_in_turn(rows.rows, rows.columns, kernel);
  }
};

TORCH_LIBRARY_IMPL(fededge, CPU, m) {
  m.impl("label_loss_forward", TORCH_FN(label_loss_op::label_loss<Cpu>));
  m.impl("distillation_forward", TORCH_FN(distillation_op::distillation<Cpu>));
  m.impl("probability_sums_", TORCH_FN(probability_sums_op::probability_sums_<Cpu>));
}

}  // namespace
}  // namespace fededge::cpu
