// probability_sums_ for any device. ops/label_loss_op.h describes Device.
#pragma once

#include "kernels/probability_sums.h"
#include "ops/logit_rows.h"
#include "ops/vector_checks.h"

namespace fededge::probability_sums_op {

inline constexpr char kOp[] = "probability_sums_";

template <class Device, typename T>
void run(Rows& rows, const at::Tensor& num, const at::Tensor& den, const at::Tensor& z,
         at::TensorList labels, at::ArrayRef<double> shares) {
  ProbabilitySums<T> sums{};
  sums.z = rows.matrix<T>("z", z);
  sums.labellings = static_cast<int>(labels.size());
  for (size_t i = 0; i < labels.size(); ++i) {
    sums.label[i] = rows.labels(labels[i]);
    sums.share[i] = shares[i];
  }
  sums.num = {output<double>(num), rows.columns};
  sums.den = {output<double>(den), 1};
  Device::by_class(rows, sums, num);
}

template <class Device>
void probability_sums_(const at::Tensor& num, const at::Tensor& den, const at::Tensor& z,
                       at::TensorList labels, at::ArrayRef<double> shares) {
  Rows rows(kOp, z);
  check_vector(kOp, "num", num, rows.columns * rows.columns, z.device(), at::kDouble);
  check_vector(kOp, "den", den, rows.columns, z.device(), at::kDouble);
  at::assert_no_overlap(num, den);
  check_labellings(kOp, labels, shares);
  if (rows.wide()) {
    run<Device, double>(rows, num, den, z, labels, shares);
  } else {
    run<Device, float>(rows, num, den, z, labels, shares);
  }
}

}  // namespace fededge::probability_sums_op
