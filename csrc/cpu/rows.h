// Runs a row kernel over all rows: threads, the best instruction set, the lanes that suit the shape.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cpu/lanes.h"
#include "cpu/simd.h"

namespace fededge::cpu {

// Rows whose losses are added up by one thread, in their order, so that the number of threads does
// not change the sum; a multiple of every pack's width.
inline constexpr int64_t kRowsAtOnce = 16;

// Columns from which on a row fills its packs better than several rows together would.
inline constexpr int kWideRow = 32;

// Exponentials per thread below which starting another one costs more than it saves.
inline constexpr int64_t kRowGrain = 16384;

// The sum of the kernel's losses over the rows from `begin` to `end`.
template <int kRegister, class Kernel>
FEDEDGE_HD double sum_rows(const Kernel& kernel, int64_t begin, int64_t end, int columns,
                           typename Kernel::Real* scratch) {
  using T = typename Kernel::Real;
  double total = 0;
  if (columns >= kWideRow) {
    for (int64_t i = begin; i < end; ++i) {
      total += kernel(ColumnLanes<T, kRegister>{columns, i, scratch});
    }
    return total;
  }
  constexpr int kWidth = RowLanes<T, kRegister>::kWidth;
  for (int64_t i = begin; i < end; i += kWidth) {
    const int rows = static_cast<int>(std::min<int64_t>(end - i, kWidth));
    T loss[kWidth];
    kernel(RowLanes<T, kRegister>{columns, i, scratch, rows}).store(loss);
    for (int j = 0; j < rows; ++j) total += loss[j];
  }
  return total;
}

// The kernel is taken by value: a local copy cannot alias what it writes.
template <class Kernel>
double rows_baseline(Kernel kernel, int64_t begin, int64_t end, int columns,
                     typename Kernel::Real* scratch) {
  return sum_rows<16>(kernel, begin, end, columns, scratch);
}

#if defined(__x86_64__)
template <class Kernel>
__attribute__((target("avx2"))) double rows_avx2(Kernel kernel, int64_t begin, int64_t end,
                                                 int columns, typename Kernel::Real* scratch) {
  return sum_rows<32>(kernel, begin, end, columns, scratch);
}

template <class Kernel>
__attribute__((target("avx512f"))) double rows_avx512(Kernel kernel, int64_t begin, int64_t end,
                                                      int columns, typename Kernel::Real* scratch) {
  return sum_rows<64>(kernel, begin, end, columns, scratch);
}
#endif

template <class Kernel>
using RowsRunner = double (*)(Kernel, int64_t, int64_t, int, typename Kernel::Real*);

template <class Kernel>
RowsRunner<Kernel> rows_runner() {
#if defined(__x86_64__)
  const Simd level = simd_level();
  if (level == Simd::kAvx512) return rows_avx512<Kernel>;
  if (level == Simd::kAvx2) return rows_avx2<Kernel>;
#endif
  return rows_baseline<Kernel>;
}

// The sum over all rows of what the kernel returns for each.
template <class Kernel>
double for_each_row(int64_t rows, int64_t columns, const Kernel& kernel) {
  using T = typename Kernel::Real;
  const RowsRunner<Kernel> run = rows_runner<Kernel>();
  const int64_t blocks = (rows + kRowsAtOnce - 1) / kRowsAtOnce;
  const int64_t kept = Kernel::kKept * columns * (columns < kWideRow ? kPackBytes / sizeof(T) : 1);
  std::vector<double> losses(blocks);
  const int64_t grain = std::max<int64_t>(1, kRowGrain / (kRowsAtOnce * columns));
  at::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<T[]> scratch(new T[kept]);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * kRowsAtOnce;
      losses[i] = run(kernel, first, std::min(rows, first + kRowsAtOnce), static_cast<int>(columns),
                      scratch.get());
    }
  });
  double total = 0;
  for (const double loss : losses) total += loss;
  return total;
}

}  // namespace fededge::cpu
