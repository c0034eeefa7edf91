// Numerator and denominator of the probability matrix.
#pragma once

#include "kernels/lanes.h"

namespace fededge {

// num[y] += share * softmax(z), den[y] += share, for each label of a row.
template <typename T>
struct ProbabilitySums {
  using Real = T;
  static constexpr int kKept = 1;
  static constexpr int kViews = 1;
  static constexpr int kLongRow = 256;

  Matrix<const T> z;
  Matrix<double> num;
  Matrix<double> den;  // one column
  const int64_t* label[2];
  double share[2];
  int labellings;
  const int64_t* order;  // row indices sorted by label, on the host; or null for consecutive rows

  template <class L>
  FEDEDGE_HD typename L::Scalar operator()(const L& lanes) const {
    static_assert(AccumulatingLanesContract<L>::kHolds);
    using Number = typename L::Number;
    using Scalar = typename L::Scalar;
    typename L::Label y[2] = {};
    for (int i = 0; i < labellings; ++i) y[i] = lanes.label(label[i]);
    const auto z_ = lanes.row(z);
    const Scalar most = lanes.max([&](auto c) FEDEDGE_LAMBDA { return lanes.load(z_, c); });
    const auto most_ = lanes.spread(most);
    const auto sums = lanes.sum([&](auto c) FEDEDGE_LAMBDA {
      const Number e = exp(lanes.load(z_, c) - lanes.of(most_, c));
      lanes.template keep<0>(c, e);
      lanes.fetch(num, y[0], c);
      return Sums<Number, 1>{{e}};
    });
    lanes.template accumulate<0>(num, den, y, share, labellings, sums.of[0]);
    return Scalar(T(0));
  }
};

}  // namespace fededge
