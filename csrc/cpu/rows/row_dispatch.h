// Declarations of the row loops for each instruction set, and the size of their scratch memory.
#pragma once

#include <cstdint>

namespace fededge::cpu {

// Returns the sum of the kernel's results for rows `begin` to `end`. `scratch` has scratch_size
// numbers.
template <class Kernel>
double rows_baseline(const Kernel& kernel, int64_t begin, int64_t end, int columns,
                     typename Kernel::Real* scratch);
template <class Kernel>
double rows_avx2(const Kernel& kernel, int64_t begin, int64_t end, int columns,
                 typename Kernel::Real* scratch);
template <class Kernel>
double rows_avx512(const Kernel& kernel, int64_t begin, int64_t end, int columns,
                   typename Kernel::Real* scratch);

// Rows with fewer columns than this use RowLanes.
inline constexpr int kWideRow = 32;

inline constexpr int kPackBytes = 64;

// The number of columns, rounded up to whole packs.
constexpr int64_t padded(int64_t columns, int64_t width) {
  return (columns + width - 1) / width * width;
}

template <class Kernel>
int64_t scratch_size(int64_t columns) {
  constexpr int64_t kWidth = kPackBytes / sizeof(typename Kernel::Real);
  if (columns < kWideRow) return (Kernel::kKept + Kernel::kViews) * columns * kWidth;
  return Kernel::kKept * padded(columns, kWidth) * (columns < Kernel::kLongRow ? kWidth : 1);
}

}  // namespace fededge::cpu
