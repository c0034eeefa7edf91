// Distillation for any device. ops/label_loss_op.h describes Device.
#pragma once

#include <tuple>

#include "kernels/distillation.h"
#include "ops/logit_rows.h"

namespace fededge::distillation_op {

using Result = std::tuple<at::Tensor, at::Tensor>;

inline constexpr char kOp[] = "distillation";

template <class Device, typename T>
Result run(Rows& rows, const at::Tensor& z, const at::Tensor& teacher, double temperature,
           const std::optional<at::Tensor>& without) {
  at::Tensor gradient = rows.gradient<Device>();
  Distillation<T> loss{};
  loss.z = rows.matrix<T>("z", z);
  loss.teacher = rows.matrix<T>("teacher", teacher);
  loss.dz = {gradient.mutable_data_ptr<T>(), rows.columns};
  if (without.has_value()) loss.label = rows.labels(*without);
  loss.temperature = static_cast<T>(temperature);
  loss.mean = T(1) / static_cast<T>(rows.rows);
  return {Device::mean(rows, loss, z), std::move(gradient)};
}

template <class Device>
Result distillation(const at::Tensor& z, const at::Tensor& teacher, double temperature,
                    const std::optional<at::Tensor>& without) {
  Rows rows(kOp, z);
  TORCH_CHECK_VALUE(temperature > 0, kOp, ": the temperature is ", temperature,
                    ", it must be above 0");
  TORCH_CHECK_VALUE(!without.has_value() || rows.columns > 1, kOp,
                    ": without the label's class there is none left");
  return rows.wide() ? run<Device, double>(rows, z, teacher, temperature, without)
                     : run<Device, float>(rows, z, teacher, temperature, without);
}

}  // namespace fededge::distillation_op
