#include "kernels/probability_sums.h"

#include <torch/library.h>

#include "cpu/matrices.h"
#include "cpu/rows.h"
#include "cpu/tensors.h"

namespace fededge::cpu {
namespace {

constexpr char kOp[] = "probability_sums_";

template <typename T>
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
  for_each_row_in_turn(rows.rows, rows.columns, sums);
}

void probability_sums_(const at::Tensor& num, const at::Tensor& den, const at::Tensor& z,
                       at::TensorList labels, at::ArrayRef<double> shares) {
  Rows rows(kOp, z);
  check_vector(kOp, "num", num, rows.columns * rows.columns, at::kDouble);
  check_vector(kOp, "den", den, rows.columns, at::kDouble);
  at::assert_no_overlap(num, den);
  check_labellings(kOp, labels, shares);
  if (rows.wide()) {
    run<double>(rows, num, den, z, labels, shares);
  } else {
    run<float>(rows, num, den, z, labels, shares);
  }
}

TORCH_LIBRARY_IMPL(fededge, CPU, m) { m.impl("probability_sums_", TORCH_FN(probability_sums_)); }

}  // namespace
}  // namespace fededge::cpu
