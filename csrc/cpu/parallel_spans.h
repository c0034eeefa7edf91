// Runs a span over all its elements, in several threads if there are many.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

#include "cpu/span_loops.h"

namespace fededge::cpu {

// Elements per thread below which another thread does not pay.
inline constexpr int64_t kGrain = 65536;

template <class Span>
void for_each(int64_t n, const Span& span) {
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) { run(span, begin, end); });
}

}  // namespace fededge::cpu
