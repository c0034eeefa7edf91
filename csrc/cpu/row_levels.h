// The row kernels as they are compiled for each instruction set: declarations only.
#pragma once

#include <cstdint>

namespace fededge::cpu {

// The sum of what the kernel returns for the rows from `begin` to `end`; `scratch` has the size
// that scratch_size gives.
template <class Kernel>
double rows_baseline(const Kernel& kernel, int64_t begin, int64_t end, int columns,
                     typename Kernel::Real* scratch);
template <class Kernel>
double rows_avx2(const Kernel& kernel, int64_t begin, int64_t end, int columns,
                 typename Kernel::Real* scratch);
template <class Kernel>
double rows_avx512(const Kernel& kernel, int64_t begin, int64_t end, int columns,
                   typename Kernel::Real* scratch);

// Columns from which on one row fills its packs better than a column of several rows would.
inline constexpr int kWideRow = 32;

inline constexpr int kPackBytes = 64;

// How many columns whole packs of this width have room for.
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
