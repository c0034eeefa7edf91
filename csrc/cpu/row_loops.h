// The loops over rows, once for each instruction set: included by the files that compile them.
//
// A file, not a function, chooses the instruction set: GCC breaks up vectors that are too wide for
// the function where they are written before it inlines that into one that could hold them.
#pragma once

#include "cpu/block_lanes.h"
#include "cpu/lanes.h"
#include "cpu/row_lanes.h"
#include "cpu/row_levels.h"
#include "kernels/distillation.h"
#include "kernels/label_loss.h"
#include "kernels/probability_sums.h"

namespace fededge::cpu {

// Blocks of as many rows as a pack has numbers; `lanes` makes those of the rows from one on.
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

// In which order a kernel takes its rows, if not as they lie.
template <class Kernel>
FEDEDGE_HD const int64_t* order_of(const Kernel&) {
  return nullptr;
}

template <typename T>
FEDEDGE_HD const int64_t* order_of(const ProbabilitySums<T>& kernel) {
  return kernel.order;
}

// The kernel is copied: of one that lies elsewhere, every store might have changed it.
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

#define FEDEDGE_ROWS_OF(name, Kernel)                                                  \
  template double name<Kernel>(const Kernel&, int64_t, int64_t, int, Kernel::Real*);

// Defines `name` for every row kernel, with registers of so many bytes.
#define FEDEDGE_ROWS(name, kRegister)                                                  \
  template <class Kernel>                                                              \
  double name(const Kernel& kernel, int64_t begin, int64_t end, int columns,           \
              typename Kernel::Real* scratch) {                                        \
    return sum_rows<kRegister>(kernel, begin, end, columns, scratch);                  \
  }                                                                                    \
  FEDEDGE_ROWS_OF(name, LabelLoss<float>)                                              \
  FEDEDGE_ROWS_OF(name, LabelLoss<double>)                                             \
  FEDEDGE_ROWS_OF(name, Distillation<float>)                                           \
  FEDEDGE_ROWS_OF(name, Distillation<double>)                                          \
  FEDEDGE_ROWS_OF(name, ProbabilitySums<float>)                                        \
  FEDEDGE_ROWS_OF(name, ProbabilitySums<double>)

}  // namespace fededge::cpu
