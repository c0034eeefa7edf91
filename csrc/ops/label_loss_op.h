// label_loss for any device: checks the tensors and builds the kernel.
//
// A Device has three static functions: empty(sizes, type, device) allocates a tensor; mean(rows,
// kernel, z) runs a row kernel and returns the mean of its results in the dtype of z, NaN without
// rows; by_class(rows, kernel, written) runs a kernel that adds to tables by class.
#pragma once

#include <cmath>
#include <tuple>

#include "kernels/label_loss.h"
#include "ops/logit_rows.h"

namespace fededge::label_loss_op {

using OptionalTensor = std::optional<at::Tensor>;
using Result = std::tuple<at::Tensor, at::Tensor>;

inline constexpr char kOp[] = "label_loss";

struct Inputs {
  const at::Tensor& z;
  at::TensorList labels;
  at::ArrayRef<double> shares;
  double weight;
  double flat;
  double soft;
  const OptionalTensor& scale;
  const OptionalTensor& shift;
  const OptionalTensor& factor;
  const OptionalTensor& added;
  const OptionalTensor& added_scale;
  const OptionalTensor& target;
};

// True if the added logits have another gradient than the logits.
inline bool two_gradients(const OptionalTensor& added, const OptionalTensor& added_scale,
                          const OptionalTensor& scale, double flat) {
  return added.has_value() && (added_scale.has_value() || scale.has_value() || flat != 0);
}

inline void check(const Inputs& in, int64_t classes) {
  check_labellings(kOp, in.labels, in.shares);
  TORCH_CHECK_VALUE(!in.labels.empty() || in.target.has_value(), kOp,
                    ": there are neither labels nor a target");
  TORCH_CHECK_VALUE(!in.labels.empty() || !in.shift.has_value() || in.shift->dim() == 1, kOp,
                    ": a shift by label needs labels");
  TORCH_CHECK_VALUE(in.flat == 0 || (classes > 1 && !in.labels.empty()), kOp,
                    ": flattening needs labels and at least two classes");
  TORCH_CHECK_VALUE(!in.added_scale.has_value() || in.added.has_value(), kOp,
                    ": there is a scale for added logits, but none are added");
  TORCH_CHECK_VALUE(
      !in.factor.has_value() || (in.shift.has_value() && in.factor->sizes() == in.shift->sizes()),
      kOp, ": a factor needs the shift of the same shape that it is e to the power of");
}

template <class Device, typename T>
Result run(const Inputs& in, Rows& rows) {
  const bool apart = two_gradients(in.added, in.added_scale, in.scale, in.flat);
  at::Tensor gradient = rows.gradient<Device>(apart);
  LabelLoss<T> loss{};
  loss.z = rows.matrix<T>("z", in.z);
  loss.scale = rows.vector<T>("scale", in.scale);
  loss.added = rows.matrix<T>("added", in.added);
  loss.added_scale = rows.vector<T>("added_scale", in.added_scale);
  loss.shift = rows.table<T>("shift", in.shift);
  loss.factor = rows.table<T>("factor", in.factor);
  loss.target = rows.matrix<T>("target", in.target);
  loss.dz = {gradient.mutable_data_ptr<T>(), rows.columns};
  if (apart) loss.dadded = {loss.dz.row(rows.rows), rows.columns};
  loss.labellings = static_cast<int>(in.labels.size());
  for (size_t i = 0; i < in.labels.size(); ++i) {
    loss.label[i] = rows.labels(in.labels[i]);
    loss.share[i] = static_cast<T>(in.shares[i]);
  }
  loss.weight = static_cast<T>(in.weight);
  loss.flat = static_cast<T>(in.flat);
  loss.soft = static_cast<T>(in.soft);
  loss.mean = T(1) / static_cast<T>(rows.rows);
  loss.log_others = static_cast<T>(std::log(static_cast<double>(rows.columns - 1)));
  return {Device::mean(rows, loss, in.z), std::move(gradient)};
}

template <class Device>
Result label_loss(const at::Tensor& z, at::TensorList labels, at::ArrayRef<double> shares,
                  double weight, double flat, double soft, const OptionalTensor& scale,
                  const OptionalTensor& shift, const OptionalTensor& factor,
                  const OptionalTensor& added, const OptionalTensor& added_scale,
                  const OptionalTensor& target) {
  const Inputs in{z,     labels, shares, weight, flat,        soft,
                  scale, shift,  factor, added,  added_scale, target};
  Rows rows(kOp, z);
  check(in, rows.columns);
  return rows.wide() ? run<Device, double>(in, rows) : run<Device, float>(in, rows);
}

}  // namespace fededge::label_loss_op
