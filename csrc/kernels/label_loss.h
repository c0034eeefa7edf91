// Losses of logits and labels: cross entropy of adjusted logits, soft targets, flattening.
#pragma once

#include "kernels/lanes.h"

namespace fededge {

// The loss of one row, and its gradient. With u = scale * z + added_scale * added + shift[y], it is
// the sum over the labellings y, weighted by their shares, of
//
//   weight * CE(u, y) + soft * CE(u, target) + flat * L1(z, y)
//
// where L1 = sum over k != y of p_k log((C - 1) p_k / (1 - p_y)), p = softmax(z): FedACD's eq. 7.
template <typename T>
struct LabelLoss {
  using Real = T;
  static constexpr int kKept = 2;
  static constexpr int kViews = 8;      // views that one function holds at once
  static constexpr int kLongRow = 160;  // columns from which a CPU computes one row at a time

  Matrix<const T> z;
  Matrix<const T> scale;
  Matrix<const T> added;
  Matrix<const T> added_scale;
  Matrix<const T> shift;   // one row per label; with a stride of 0, one row for all labels
  Matrix<const T> factor;  // e^shift, which saves exponentials; optional
  Matrix<const T> target;
  Matrix<T> dz;
  Matrix<T> dadded;  // null if it equals dz
  const int64_t* label[2];
  T share[2];
  int labellings;  // 0: only a target
  T weight;
  T soft;
  T flat;
  T mean;        // 1 / rows
  T log_others;  // log(C - 1)

  template <class L>
  FEDEDGE_HD typename L::Scalar operator()(const L& lanes) const {
    static_assert(LanesContract<L>::kHolds);
    using Scalar = typename L::Scalar;
    typename L::Label y[2] = {};
    for (int i = 0; i < labellings; ++i) y[i] = lanes.label(label[i]);
    if (flat == 0 && (labellings < 2 || shift.stride == 0)) {
      return any_cross_entropy(lanes, y, share, labellings, false);
    }
    if (scale || added || target || (shift && !factor)) return in_parts(lanes);
    Scalar loss(T(0));
    const auto seen = labellings == 1 ? shared<1>(lanes, y, loss) : shared<2>(lanes, y, loss);
    return lanes.mended(loss, seen, [&](const auto& row) { return in_parts(row); });
  }

  // The optional inputs as template flags, so that the loop has no branches. kAny tests at run
  // time.
  static constexpr int kScale = 1;
  static constexpr int kAdded = 2;
  static constexpr int kShift = 4;
  static constexpr int kTarget = 8;
  static constexpr int kAddedScale = 16;
  static constexpr int kAny = -1;

  // The kernel for a fixed set of inputs (kParts) and number of labellings (kCount).
  template <int kParts, int kCount>
  struct Known;

  // Calls f with the most specialised kernel: plain, restricted, fused logits (two kinds),
  // adjusted, LfD's, soft targets, or the general one.
  template <class F>
  FEDEDGE_HD auto most_known(F f) const {
    if constexpr (sizeof(T) == sizeof(float)) {  // training uses float; double need not be as fast
      const int there = flat == 0 && labellings < 2 ? parts() : kAny;
      if (labellings == 1 && there == 0) return f(Known<0, 1>{*this});
      if (labellings == 1 && there == kScale) return f(Known<kScale, 1>{*this});
      if (labellings == 1 && there == kAdded) return f(Known<kAdded, 1>{*this});
      if (labellings == 1 && there == (kAdded | kAddedScale)) {
        return f(Known<kAdded | kAddedScale, 1>{*this});
      }
      if (labellings == 1 && there == kShift) return f(Known<kShift, 1>{*this});
      if (labellings == 1 && there == (kShift | kTarget)) {
        return f(Known<kShift | kTarget, 1>{*this});
      }
      if (labellings == 0 && there == kTarget) return f(Known<kTarget, 0>{*this});
    }
    return f(*this);
  }

 private:
  FEDEDGE_HD int parts() const {
    return (scale ? kScale : 0) | (added ? kAdded : 0) | (shift ? kShift : 0) |
           (target ? kTarget : 0) | (added_scale ? kAddedScale : 0);
  }

  template <class L, class View, class Column>
  FEDEDGE_HD static void put(const L& lanes, const View& v, Column c, const typename L::Number& x,
                             bool add) {
    if (add) {
      lanes.add(v, c, x);
    } else {
      lanes.store(v, c, x);
    }
  }

  // Both cross entropies, for labellings that share one softmax.
  template <int kParts, int kCount, class L>
  FEDEDGE_HD typename L::Scalar cross_entropy(const L lanes, const typename L::Label* y,
                                              const T* part, int labelled, bool add) const {
    using Number = typename L::Number;
    using Scalar = typename L::Scalar;
    const int there = kParts == kAny ? parts() : kParts;
    const int count = kCount == kAny ? labelled : kCount;
    const bool apart = kParts == kAny ? bool(dadded) : (kParts & kAddedScale) != 0;
    const auto z_ = lanes.row(z);
    const auto scale_ = lanes.row(scale);
    const auto added_ = lanes.row(added);
    const auto added_scale_ = lanes.row(added_scale);
    const auto target_ = lanes.row(target);
    const auto shift_ = shift.stride == 0 ? lanes.row(shift) : lanes.row(shift, y[0]);
    const Scalar most = lanes.max([&](auto c) FEDEDGE_LAMBDA {
      Number x = lanes.load(z_, c);
      if (there & kScale) x = x * lanes.load(scale_, c);
      if (there & kAddedScale) {
        x = x + lanes.load(added_, c) * lanes.load(added_scale_, c);
      } else if (there & kAdded) {
        x = x + lanes.load(added_, c);
      }
      if (there & kShift) x = x + lanes.load(shift_, c);
      lanes.template keep<0>(c, x);
      return x;
    });
    const auto most_ = lanes.spread(most);
    const auto sums = lanes.sum([&](auto c) FEDEDGE_LAMBDA {
      const Number x = lanes.template kept<0>(c) - lanes.of(most_, c);
      const Number e = exp(x);
      lanes.template keep<0>(c, e);
      if constexpr (kParts != kAny && (kParts & kTarget) == 0) {
        return Sums<Number, 1>{{e}};
      } else {
        const Number t = there & kTarget ? lanes.load(target_, c) : Number(T(0));
        // 0 log 0 = 0: a class that the shift excludes and whose target is 0.
        return Sums<Number, 3>{{e, t, where(t == T(0), t, t * x)}};
      }
    });
    const Scalar log_sum = log(sums.of[0]);
    Scalar loss(T(0));
    T shares = 0;
    for (int i = 0; i < count; ++i) {
      Scalar x = lanes.at(z_, y[i]);
      if (there & kScale) x = x * lanes.at(scale_, y[i]);
      if (there & kAddedScale) {
        x = x + lanes.at(added_, y[i]) * lanes.at(added_scale_, y[i]);
      } else if (there & kAdded) {
        x = x + lanes.at(added_, y[i]);
      }
      if (there & kShift) x = x + lanes.at(shift_, y[i]);
      if (weight != 0) loss = loss + (weight * part[i]) * (log_sum - (x - most));
      shares += part[i];
    }
    const T softly = count == 0 ? soft : soft * shares;
    Scalar mass(weight * shares);
    if constexpr (kParts == kAny || (kParts & kTarget) != 0) {
      if (there & kTarget) {
        loss = loss + softly * (sums.of[1] * log_sum - sums.of[2]);
        mass = mass + softly * sums.of[1];
      }
    }
    const auto rate_ = lanes.spread(mean * mass / sums.of[0]);
    const auto dz_ = lanes.open(dz, kCount == kAny && add);
    const auto dadded_ = lanes.open(dadded, kCount == kAny && add);
    lanes.each([&](auto c) FEDEDGE_LAMBDA {
      Number du = lanes.template kept<0>(c) * lanes.of(rate_, c);
      if (there & kTarget) du = du - (mean * softly) * lanes.load(target_, c);
      if (apart) {
        const Number da = there & kAddedScale ? du * lanes.load(added_scale_, c) : du;
        put(lanes, dadded_, c, da, kCount == kAny && add);
      }
      if (there & kScale) du = du * lanes.load(scale_, c);
      put(lanes, dz_, c, du, kCount == kAny && add);
    });
    if (apart) lanes.close(dadded_);
    lanes.close(dz_);
    for (int i = 0; i < count; ++i) {
      const Scalar own(mean * weight * part[i]);
      if (apart) {
        lanes.take(dadded_, y[i], there & kAddedScale ? own * lanes.at(added_scale_, y[i]) : own);
      }
      lanes.take(dz_, y[i], there & kScale ? own * lanes.at(scale_, y[i]) : own);
    }
    return loss;
  }

  // Every term separately, each with its own exponentials.
  template <class L>
  FEDEDGE_APART typename L::Scalar in_parts(const L& lanes) const {
    using Scalar = typename L::Scalar;
    Scalar loss(T(0));
    for (int i = 0; i < labellings; ++i) {
      const typename L::Label y = lanes.label(label[i]);
      loss = loss + any_cross_entropy(lanes, &y, share + i, 1, i > 0);
      if (flat != 0) loss = loss + flattening(lanes, y, share[i]);
    }
    return loss;
  }

  template <class L>
  FEDEDGE_APART typename L::Scalar any_cross_entropy(const L& lanes, const typename L::Label* y,
                                                     const T* part, int labelled, bool add) const {
    return cross_entropy<kAny, kAny>(lanes, y, part, labelled, add);
  }

  // Adds the gradient of L1. The maximum is taken over the classes except y, so that precision is
  // kept if y has almost all of the probability.
  template <class L>
  FEDEDGE_APART typename L::Scalar flattening(const L lanes, const typename L::Label& y,
                                              T part) const {
    using Number = typename L::Number;
    using Scalar = typename L::Scalar;
    const Number none(-Constants<T>::infinity());
    const auto z_ = lanes.row(z);
    const auto other = [&](auto c) FEDEDGE_LAMBDA {
      return where(lanes.is(c, y), none, lanes.load(z_, c));
    };
    const Scalar rest = lanes.max(other);
    const auto rest_ = lanes.spread(rest);
    const auto sums = lanes.sum([&](auto c) FEDEDGE_LAMBDA {
      const Number x = other(c) - lanes.of(rest_, c);
      const Number e = exp(x);
      lanes.template keep<0>(c, e);
      return Sums<Number, 2>{{e, where(lanes.is(c, y), e, e * x)}};
    });
    const Scalar own = lanes.at(z_, y);
    const Scalar most = larger(own, rest);
    const Scalar e_rest = exp(rest - most);
    const Scalar e_own = exp(own - most);
    const Scalar total = sums.of[0] * e_rest + e_own;
    const Scalar level = log_others - log(sums.of[0]);
    const Scalar l1 = e_rest * (sums.of[1] + sums.of[0] * level) / total;
    const auto rate_ = lanes.spread((mean * flat * part) / total);
    const auto e_rest_ = lanes.spread(e_rest);
    const auto level_ = lanes.spread(level - l1);
    const auto own_slope_ = lanes.spread(Scalar(T(0)) - e_own * l1);
    const auto dz_ = lanes.open(dz, true);
    lanes.each([&](auto c) FEDEDGE_LAMBDA {
      const Number x = lanes.load(z_, c) - lanes.of(rest_, c);
      const Number e = lanes.template kept<0>(c) * lanes.of(e_rest_, c);
      const Number slope = e * (x + lanes.of(level_, c));
      const Number own_slope(lanes.of(own_slope_, c));
      lanes.add(dz_, c, where(lanes.is(c, y), own_slope, slope) * lanes.of(rate_, c));
    });
    lanes.close(dz_);
    return (flat * part) * l1;
  }

  // weight * CE + flat * L1 with one exponential per column: e^(z + shift) = e^z factor. Returns
  // false for rows in which numbers that underflowed could matter; these must be computed again.
  template <int kCount, class L>
  FEDEDGE_HD auto shared(const L lanes, const typename L::Label* y,
                         typename L::Scalar& loss) const {
    using Number = typename L::Number;
    using Scalar = typename L::Scalar;
    using View = decltype(lanes.row(factor));
    constexpr T kLost = Constants<T>::kTiny * T(1024) * T(int64_t(1) << Constants<T>::kMantissa);
    const auto z_ = lanes.row(z);
    View factor_[kCount];
    for (int i = 0; i < kCount; ++i) factor_[i] = lanes.row(factor, y[i]);
    const Scalar most = lanes.max([&](auto c) FEDEDGE_LAMBDA {
      const Number x = lanes.load(z_, c);
      lanes.template keep<1>(c, x);
      return x;
    });
    const auto most_ = lanes.spread(most);
    const auto sums = lanes.sum([&](auto c) FEDEDGE_LAMBDA {
      const Number x = lanes.template kept<1>(c) - lanes.of(most_, c);
      const Number e = exp(x);
      lanes.template keep<0>(c, e);
      Sums<Number, 1 + 3 * kCount> out;
      out.of[0] = e * x;
      for (int i = 0; i < kCount; ++i) {
        const Number f = factor ? lanes.load(factor_[i], c) : Number(T(1));
        out.of[1 + 3 * i] = where(lanes.is(c, y[i]), Number(T(0)), e);
        out.of[2 + 3 * i] = e * f;
        out.of[3 + 3 * i] = f;
      }
      return out;
    });

    const auto in_reach = [&](int i) FEDEDGE_LAMBDA {
      const Scalar adjusted = sums.of[2 + 3 * i];
      return (sums.of[1 + 3 * i] > kLost * T(lanes.columns)) &
             (adjusted > kLost * sums.of[3 + 3 * i]) & (adjusted < Constants<T>::kMost);
    };
    const auto seen = in_reach(0) & in_reach(kCount - 1);
    Scalar total(T(0));
    typename L::Spread level_[kCount];
    typename L::Spread own_[kCount];
    typename L::Spread rate_[kCount];
    typename L::Spread flat_[kCount];
    loss = Scalar(T(0));
    for (int i = 0; i < kCount; ++i) {
      const Scalar rest = sums.of[1 + 3 * i];
      const Scalar adjusted = sums.of[2 + 3 * i];
      const Scalar x = lanes.at(z_, y[i]) - most;
      const Scalar e = exp(x);
      if (i == 0) total = rest + e;
      const Scalar level = log_others - log(rest);
      const Scalar l1 = ((sums.of[0] - e * x) + rest * level) / total;
      Scalar ce = log(adjusted) - x;
      if (shift) ce = ce - lanes.diagonal(shift, y[i]);
      loss = loss + share[i] * (flat * l1 + weight * ce);
      level_[i] = lanes.spread(level - l1);
      own_[i] = lanes.spread(Scalar(T(0)) - l1);
      rate_[i] = lanes.spread((mean * weight * share[i]) / adjusted);
      flat_[i] = lanes.spread((mean * flat) / total * share[i]);
    }
    const auto dz_ = lanes.open(dz);
    lanes.each([&](auto c) FEDEDGE_LAMBDA {
      const Number x = lanes.template kept<1>(c) - lanes.of(most_, c);
      Number slope(T(0));
      for (int i = 0; i < kCount; ++i) {
        const auto is = lanes.is(c, y[i]);
        const Number f = factor ? lanes.load(factor_[i], c) : Number(T(1));
        const Number l = where(is, Number(lanes.of(own_[i], c)), x + lanes.of(level_[i], c));
        slope = slope + (l * lanes.of(flat_[i], c) + f * lanes.of(rate_[i], c));
      }
      lanes.store(dz_, c, lanes.template kept<0>(c) * slope);
    });
    lanes.close(dz_);
    for (int i = 0; i < kCount; ++i) lanes.take(dz_, y[i], Scalar(mean * weight * share[i]));
    return seen;
  }
};

template <typename T>
template <int kParts, int kCount>
struct LabelLoss<T>::Known : LabelLoss<T> {
  template <class L>
  FEDEDGE_HD typename L::Scalar operator()(const L& lanes) const {
    static_assert(LanesContract<L>::kHolds);
    typename L::Label y[1] = {};
    if (kCount == 1) y[0] = lanes.label(this->label[0]);
    return this->template cross_entropy<kParts, kCount>(lanes, y, this->share, kCount, false);
  }
};

}  // namespace fededge
