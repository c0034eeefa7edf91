// Distillation: the KL divergence of two tempered softmaxes.
#pragma once

#include "kernels/lanes.h"

namespace fededge {

// T² KL(softmax(teacher / T) ‖ softmax(z / T)) of one row, and its gradient. With labels, both
// softmaxes leave out the label's class (FedNTD).
template <typename T>
struct Distillation {
  using Real = T;
  static constexpr int kKept = 2;
  static constexpr int kViews = 3;
  static constexpr int kLongRow = 160;

  Matrix<const T> z;
  Matrix<const T> teacher;
  Matrix<T> dz;
  const int64_t* label;  // or null
  T temperature;
  T mean;  // 1 / rows

  template <class L>
  FEDEDGE_HD typename L::Scalar operator()(const L& lanes) const {
    static_assert(LanesContract<L>::kHolds);
    using Number = typename L::Number;
    using Scalar = typename L::Scalar;
    typename L::Label y = {};
    if (label != nullptr) y = lanes.label(label);
    const T cold = T(1) / temperature;
    const auto tempered = [&](const auto& view, auto c) FEDEDGE_LAMBDA {
      const Number x = lanes.load(view, c) * cold;
      return label == nullptr ? x : where(lanes.is(c, y), Number(-Constants<T>::infinity()), x);
    };
    const auto z_ = lanes.row(z);
    const auto teacher_ = lanes.row(teacher);
    const Scalar most = lanes.max([&](auto c) FEDEDGE_LAMBDA { return tempered(z_, c); });
    const Scalar top = lanes.max([&](auto c) FEDEDGE_LAMBDA { return tempered(teacher_, c); });
    const auto most_ = lanes.spread(most);
    const auto top_ = lanes.spread(top);
    const auto sums = lanes.sum([&](auto c) FEDEDGE_LAMBDA {
      const Number a = tempered(z_, c) - lanes.of(most_, c);
      const Number b = tempered(teacher_, c) - lanes.of(top_, c);
      const Number student = exp(a);
      const Number taught = exp(b);
      lanes.template keep<0>(c, student);
      lanes.template keep<1>(c, taught);
      // 0 log 0 = 0: a class that both sides exclude would give ∞ - ∞.
      return Sums<Number, 3>{{student, taught, where(taught == T(0), taught, taught * (b - a))}};
    });
    const Scalar divergence = sums.of[2] / sums.of[1] + (log(sums.of[0]) - log(sums.of[1]));
    const auto pull_ = lanes.spread((mean * temperature) / sums.of[0]);
    const auto push_ = lanes.spread((mean * temperature) / sums.of[1]);
    const auto dz_ = lanes.open(dz);
    lanes.each([&](auto c) FEDEDGE_LAMBDA {
      const Number pulled = lanes.template kept<0>(c) * lanes.of(pull_, c);
      lanes.store(dz_, c, pulled - lanes.template kept<1>(c) * lanes.of(push_, c));
    });
    lanes.close(dz_);
    return (temperature * temperature) * divergence;
  }
};

}  // namespace fededge
