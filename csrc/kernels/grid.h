// What one thread of many does of a span: the same on a device and in the tests that play one.
#pragma once

#include "kernels/host_device.h"

namespace fededge {

// Every `step`-th element from `first` on.
template <class Span>
FEDEDGE_HD void stride_over(const Span& span, int64_t n, int64_t first, int64_t step) {
  for (int64_t i = first; i < n; i += step) span(i);
}

}  // namespace fededge
