// Weighted accumulation of one model into a running sum.
#pragma once

#include "kernels/half.h"
#include "kernels/host_device.h"

namespace fededge {

// acc += weight * x, in the accumulator's precision; x is float, Half, BFloat16 or int8.
template <typename Acc, typename X>
struct Accumulate {
  Acc* acc;
  const X* x;
  Acc weight;

  FEDEDGE_HD void operator()(int64_t i) const { acc[i] += weight * static_cast<Acc>(x[i]); }
};

// acc += weight * scale * q, where each tensor of the model has a scale of its own.
template <typename Acc>
struct AccumulateInt8 {
  Acc* acc;
  const int8_t* q;
  Acc weight;
  const int64_t* ends;  // where each tensor ends: ascending, the last is the vector's length
  const float* scales;
  int64_t tensors;

  // The tensor that holds element i: the first that ends after it.
  FEDEDGE_HD int64_t tensor_of(int64_t i) const {
    int64_t low = 0;
    int64_t high = tensors - 1;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (ends[middle] > i) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  // What is to be done inside one tensor: a loop over it has nothing to look up.
  FEDEDGE_HD Accumulate<Acc, int8_t> within(int64_t tensor) const {
    return {acc, q, weight * static_cast<Acc>(scales[tensor])};
  }

  FEDEDGE_HD void operator()(int64_t i) const { within(tensor_of(i))(i); }
};

}  // namespace fededge
