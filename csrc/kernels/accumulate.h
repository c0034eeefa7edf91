// Adds a weighted model to a running sum.
#pragma once

#include "kernels/numbers/half.h"
#include "kernels/numbers/host_device.h"

namespace fededge {

// acc += weight * x, in the accumulator's precision; x is float or Half.
template <typename Acc, typename X>
struct Accumulate {
  Acc* acc;
  const X* x;
  Acc weight;

  FEDEDGE_HD void operator()(int64_t i) const { acc[i] += weight * static_cast<Acc>(x[i]); }
};

}  // namespace fededge
