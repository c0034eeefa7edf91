// Runs a row kernel over all rows: threads, and run-time dispatch by instruction set.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cpu/rows/row_dispatch.h"
#include "cpu/simd.h"

namespace fededge::cpu {

// Rows per partial sum. It does not depend on the number of threads, so that the bits do not
// either. It is a multiple of every pack's width, and larger for short rows to amortise the call of
// the loop.
constexpr int64_t rows_at_once(int64_t columns) { return columns < 160 ? 128 : 16; }

// Exponentials per thread below which another thread does not pay.
inline constexpr int64_t kRowGrain = 16384;
inline constexpr int64_t kSumGrain = 4096;  // for kernels that add rows to a table

template <class Kernel>
using RowsRunner = double (*)(const Kernel&, int64_t, int64_t, int, typename Kernel::Real*);

template <class Kernel>
RowsRunner<Kernel> rows_runner() {
#if defined(__x86_64__)
  const Simd level = simd_level();
  if (level == Simd::kAvx512) return rows_avx512<Kernel>;
  if (level == Simd::kAvx2) return rows_avx2<Kernel>;
#endif
  return rows_baseline<Kernel>;
}

// All rows in order, in one thread.
template <class Kernel>
double for_each_row_in_turn(int64_t rows, int64_t columns, const Kernel& kernel) {
  using T = typename Kernel::Real;
  const std::unique_ptr<T[]> scratch(new T[scratch_size<Kernel>(columns)]);
  return rows_runner<Kernel>()(kernel, 0, rows, static_cast<int>(columns), scratch.get());
}

// Returns the sum of the kernel's results over all rows.
template <class Kernel>
double for_each_row(int64_t rows, int64_t columns, const Kernel& kernel) {
  const int64_t at_once = rows_at_once(columns);
  if (rows <= at_once) return for_each_row_in_turn(rows, columns, kernel);
  using T = typename Kernel::Real;
  const RowsRunner<Kernel> run = rows_runner<Kernel>();
  std::vector<double> losses((rows + at_once - 1) / at_once);
  const int64_t grain = std::max<int64_t>(1, kRowGrain / (at_once * columns));
  at::parallel_for(0, losses.size(), grain, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<T[]> scratch(new T[scratch_size<Kernel>(columns)]);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * at_once;
      const int64_t last = std::min(rows, first + at_once);
      losses[i] = run(kernel, first, last, static_cast<int>(columns), scratch.get());
    }
  });
  double total = 0;
  for (const double loss : losses) total += loss;
  return total;
}

// A stable sort of the rows by `parts` ranges of classes, and the begin of each range. The ranges
// have about equally many rows.
struct RowsByClass {
  std::vector<int64_t> order;
  std::vector<int64_t> begin;

  RowsByClass(const int64_t* label, int64_t rows, int64_t columns, int64_t parts)
      : order(rows), begin(parts + 1) {
    std::vector<int64_t> part(columns);
    for (int64_t i = 0; i < rows; ++i) ++part[label[i]];
    int64_t before = 0;
    for (int64_t& of : part) {
      const int64_t count = of;
      of = std::min(parts - 1, (before + count / 2) * parts / rows);
      before += count;
      begin[of + 1] = before;
    }
    for (int64_t i = 1; i <= parts; ++i) begin[i] = std::max(begin[i], begin[i - 1]);
    std::vector<int64_t> next = begin;
    for (int64_t i = 0; i < rows; ++i) order[next[part[label[i]]]++] = i;
  }
};

// Runs a kernel whose rows add to their label's row of a table. Each thread owns a range of
// classes, so that no two threads write the same row, and takes its rows in order, so that the sums
// do not depend on the number of threads. With two labels per row there is only one thread.
template <class Kernel>
void for_each_row_by_class(int64_t rows, int64_t columns, const Kernel& kernel) {
  const int64_t parts = std::min<int64_t>(at::get_num_threads(), rows * columns / kSumGrain);
  if (parts < 2 || kernel.labellings != 1 || at::in_parallel_region()) {
    for_each_row_in_turn(rows, columns, kernel);
    return;
  }
  const RowsByClass sorted(kernel.label[0], rows, columns, parts);
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Kernel mine = kernel;
      mine.order = sorted.order.data() + sorted.begin[i];
      for_each_row_in_turn(sorted.begin[i + 1] - sorted.begin[i], columns, mine);
    }
  });
}

}  // namespace fededge::cpu
