// Weighted accumulation of one model into a running sum.
#pragma once

#include "kernels/host_device.h"

namespace fededge {

// acc += weight * x, in the accumulator's precision.
template <typename Acc>
struct Accumulate {
  Acc* acc;
  const float* x;
  Acc weight;

  FEDEDGE_HD void operator()(int64_t i) const {
    acc[i] += weight * static_cast<Acc>(x[i]);
  }
};

}  // namespace fededge
