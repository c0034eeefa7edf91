// The mean of what a row kernel returned for each row, in a fixed order.
#pragma once

#include "kernels/lanes.h"

namespace fededge {

// Itself a row kernel, of one row: the results are its columns. Of no results it is NaN.
template <typename T>
struct Mean {
  using Real = double;
  static constexpr int kKept = 0;

  const T* results;

  template <class L>
  FEDEDGE_HD double operator()(const L& lanes) const {
    const auto sums = lanes.sum(
        [&](auto c) FEDEDGE_LAMBDA { return Sums<double, 1>{{lanes.load(results, c)}}; });
    return sums.of[0] / lanes.columns;
  }
};

}  // namespace fededge
