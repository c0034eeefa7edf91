#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <torch/library.h>

#include "cpu/rows/parallel_rows.h"
#include "ops/distillation_op.h"
#include "ops/label_loss_op.h"
#include "ops/probability_sums_op.h"

namespace fededge::cpu {
namespace {

struct Cpu {
  static at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type, at::Device) {
    return at::detail::empty_cpu(sizes, type);
  }

  template <class Kernel>
  static at::Tensor mean(const Rows& rows, const Kernel& kernel, const at::Tensor& z) {
    const double total = for_each_row(rows.rows, rows.columns, kernel);
    const double mean = total / static_cast<double>(rows.rows);
    at::Tensor out = at::detail::empty_cpu({}, z.scalar_type());
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, z.scalar_type(), "fededge", [&] {
      *out.mutable_data_ptr<scalar_t>() = static_cast<scalar_t>(mean);
    });
    return out;
  }

  template <class Kernel>
  static void by_class(const Rows& rows, const Kernel& kernel, const at::Tensor&) {
    for_each_row_by_class(rows.rows, rows.columns, kernel);
  }
};

TORCH_LIBRARY_IMPL(fededge, CPU, m) {
  m.impl("label_loss_forward", TORCH_FN(label_loss_op::label_loss<Cpu>));
  m.impl("distillation_forward", TORCH_FN(distillation_op::distillation<Cpu>));
  m.impl("probability_sums_", TORCH_FN(probability_sums_op::probability_sums_<Cpu>));
}

}  // namespace
}  // namespace fededge::cpu
