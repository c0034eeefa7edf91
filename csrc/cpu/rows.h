// Runs a row kernel over all rows: threads, and the best instruction set at run time.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cpu/row_levels.h"
#include "cpu/simd.h"

namespace fededge::cpu {

// Rows whose losses are added up by one thread, in their order, so that the number of threads does
// not change the sum; a multiple of every pack's width. Of short rows it is more, because to call the
// loop takes as long as some of them.
constexpr int64_t rows_at_once(int64_t columns) { return columns < 160 ? 128 : 16; }

// Exponentials per thread below which starting another one costs more than it saves.
inline constexpr int64_t kRowGrain = 16384;
inline constexpr int64_t kSumGrain = 4096;  // of rows that are also added to a table

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

// All rows in their order, by one thread.
template <class Kernel>
double for_each_row_in_turn(int64_t rows, int64_t columns, const Kernel& kernel) {
  using T = typename Kernel::Real;
  const std::unique_ptr<T[]> scratch(new T[scratch_size<Kernel>(columns)]);
  return rows_runner<Kernel>()(kernel, 0, rows, static_cast<int>(columns), scratch.get());
}

// The sum over all rows of what the kernel returns for each.
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

// The rows, sorted by `parts` ranges of classes, and where those of each range begin. Within a range
// they are in their order; the ranges have about as many rows.
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

// For kernels whose rows add to their label's row of a table: every thread has classes of its own, so
// that none writes what is another's, and takes their rows in order, so that every sum is the same
// whatever the number of threads. Rows that have two labels are computed by one thread.
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
