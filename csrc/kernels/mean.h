// The mean of a row kernel's results, in a fixed order.
#pragma once

#include "kernels/lanes.h"

namespace fededge {

// A row kernel with one row, whose columns are the results. The mean of no results is NaN.
template <typename T>
struct Mean {
  using Real = double;
  static constexpr int kKept = 0;

  const T* results;

  template <class L>
  FEDEDGE_HD double operator()(const L& lanes) const {
    static_assert(LanesContract<L>::kHolds);
    const auto sums =
        lanes.sum([&](auto c) FEDEDGE_LAMBDA { return Sums<double, 1>{{lanes.load(results, c)}}; });
    return sums.of[0] / lanes.columns;
  }
};

}  // namespace fededge
