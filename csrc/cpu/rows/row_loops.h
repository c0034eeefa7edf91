// The loops over rows, compiled once per instruction set.
//
// A file, not a function, selects the instruction set: GCC splits vectors that are too wide for the
// function in which they appear before it inlines that function into a caller with wider registers.
#pragma once

#include "cpu/rows/block_lanes.h"
#include "cpu/rows/column_lanes.h"
#include "cpu/rows/row_dispatch.h"
#include "cpu/rows/row_lanes.h"
#include "kernels/distillation.h"
#include "kernels/label_loss.h"
#include "kernels/probability_sums.h"

namespace fededge::cpu {

// Runs the kernel over blocks of kWidth rows. lanes(i, n) makes the Lanes of n rows from row i on.
template <int kWidth, class Kernel, class Make>
FEDEDGE_HD double sum_blocks(const Kernel& kernel, int64_t begin, int64_t end, Make lanes) {
  double total = 0;
  for (int64_t i = begin; i < end; i += kWidth) {
    const int rows = end - i < kWidth ? static_cast<int>(end - i) : kWidth;
    typename Kernel::Real loss[kWidth];
    kernel(lanes(i, rows)).store(loss);
    for (int j = 0; j < rows; ++j) total += loss[j];
  }
  return total;
}

// The row indices of a kernel, or null for consecutive rows.
template <class Kernel>
FEDEDGE_HD const int64_t* order_of(const Kernel&) {
  return nullptr;
}

template <typename T>
FEDEDGE_HD const int64_t* order_of(const ProbabilitySums<T>& kernel) {
  return kernel.order;
}

// The kernel is passed by value, so that stores cannot alias it.
template <int kRegister, class Kernel>
FEDEDGE_APART double loop_over_rows(Kernel kernel, int64_t begin, int64_t end, int columns,
                                    typename Kernel::Real* scratch) {
  using T = typename Kernel::Real;
  constexpr int kWidth = Pack<T, kRegister>::kWidth;
  const int64_t* const order = order_of(kernel);
  if (columns < kWideRow) {
    return sum_blocks<kWidth>(kernel, begin, end, [&](int64_t i, int rows) FEDEDGE_LAMBDA {
      T* const views = scratch + Kernel::kKept * columns * kWidth;
      return RowLanes<T, kRegister>{columns, i, scratch, rows, views, order};
    });
  }
  if (columns < Kernel::kLongRow) {
    const int64_t room = Kernel::kKept * padded(columns, kWidth);
    return sum_blocks<kWidth>(kernel, begin, end, [&](int64_t i, int rows) FEDEDGE_LAMBDA {
      return BlockLanes<T, kRegister>{columns, i, scratch, room, rows, order};
    });
  }
  double total = 0;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = order == nullptr ? i : order[i];
    total += kernel(ColumnLanes<T, kRegister>{columns, row, scratch});
  }
  return total;
}

template <int kRegister, class Kernel>
FEDEDGE_HD double sum_rows(const Kernel& kernel, int64_t begin, int64_t end, int columns,
                           typename Kernel::Real* scratch) {
  return loop_over_rows<kRegister>(kernel, begin, end, columns, scratch);
}

template <int kRegister, typename T>
FEDEDGE_HD double sum_rows(const LabelLoss<T>& loss, int64_t begin, int64_t end, int columns,
                           T* scratch) {
  return loss.most_known([&](const auto& kernel) FEDEDGE_LAMBDA {
    return loop_over_rows<kRegister>(kernel, begin, end, columns, scratch);
  });
}

#define FEDEDGE_ROWS_OF(name, Kernel) \
  template double name<Kernel>(const Kernel&, int64_t, int64_t, int, Kernel::Real*);

// Defines `name` for every row kernel, with registers of kRegister bytes.
#define FEDEDGE_ROWS(name, kRegister)                                        \
  template <class Kernel>                                                    \
  double name(const Kernel& kernel, int64_t begin, int64_t end, int columns, \
              typename Kernel::Real* scratch) {                              \
    return sum_rows<kRegister>(kernel, begin, end, columns, scratch);        \
  }                                                                          \
  FEDEDGE_ROWS_OF(name, LabelLoss<float>)                                    \
  FEDEDGE_ROWS_OF(name, LabelLoss<double>)                                   \
  FEDEDGE_ROWS_OF(name, Distillation<float>)                                 \
  FEDEDGE_ROWS_OF(name, Distillation<double>)                                \
  FEDEDGE_ROWS_OF(name, ProbabilitySums<float>)                              \
  FEDEDGE_ROWS_OF(name, ProbabilitySums<double>)

}  // namespace fededge::cpu
