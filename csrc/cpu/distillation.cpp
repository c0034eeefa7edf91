#include "kernels/distillation.h"

#include <torch/library.h>

#include <tuple>

#include "cpu/matrices.h"
#include "cpu/rows.h"

namespace fededge::cpu {
namespace {

using Result = std::tuple<at::Tensor, at::Tensor>;

constexpr char kOp[] = "distillation";

template <typename T>
Result run(Rows& rows, const at::Tensor& z, const at::Tensor& teacher, double temperature,
           const std::optional<at::Tensor>& without) {
  at::Tensor gradient = rows.gradient();
  Distillation<T> loss{};
  loss.z = rows.matrix<T>("z", z);
  loss.teacher = rows.matrix<T>("teacher", teacher);
  loss.dz = {gradient.mutable_data_ptr<T>(), rows.columns};
  if (without.has_value()) loss.label = rows.labels(*without);
  loss.temperature = static_cast<T>(temperature);
  loss.mean = T(1) / static_cast<T>(rows.rows);
  return {rows.mean_of(for_each_row(rows.rows, rows.columns, loss), z), std::move(gradient)};
}

Result distillation(const at::Tensor& z, const at::Tensor& teacher, double temperature,
                    const std::optional<at::Tensor>& without) {
  Rows rows(kOp, z);
  TORCH_CHECK_VALUE(temperature > 0, kOp, ": the temperature is ", temperature,
                    ", it must be above 0");
  TORCH_CHECK_VALUE(!without.has_value() || rows.columns > 1, kOp,
                    ": without the label's class there is none left");
  return rows.wide() ? run<double>(rows, z, teacher, temperature, without)
                     : run<float>(rows, z, teacher, temperature, without);
}

TORCH_LIBRARY_IMPL(fededge, CPU, m) { m.impl("distillation_forward", TORCH_FN(distillation)); }

}  // namespace
}  // namespace fededge::cpu
