// The share of one device thread in a span or in the rows. The tests emulate the device.
#pragma once

#include "kernels/exchange.h"
#include "kernels/lanes.h"
#include "kernels/numbers/host_device.h"

namespace fededge {

// Runs the span for every `step`-th element from `first` on.
template <class Span>
FEDEDGE_HD void stride_over(const Span& span, int64_t n, int64_t first, int64_t step) {
  for (int64_t i = first; i < n; i += step) span(i);
}

// The launch configuration of a span.
struct SpanPlan {
  static constexpr int kThreads = 256;
  static constexpr int64_t kBlocks = 4096;  // more than any device runs; threads loop over the rest

  static int64_t blocks(int64_t n) {
    const int64_t needed = (n + kThreads - 1) / kThreads;
    return needed < kBlocks ? needed : kBlocks;
  }
};

// Arguments of a row kernel's launch that all threads share.
template <typename T>
struct RowJob {
  static constexpr int64_t kInside = INT64_MIN;  // never a label

  int64_t rows;
  int columns;
  T* results;        // the kernel's result for each row
  int64_t* outside;  // receives a label that is out of range; initially kInside

  FEDEDGE_HD bool has(int64_t label) const { return label >= 0 && label < columns; }
};

// Lanes that check labels. A row with a label out of range is computed with label 0, all its
// outputs are NaN, and the label is reported.
template <typename T, class Exchange>
struct CheckedLanes : StridedLanes<T, Exchange> {
  const RowJob<T>* job;
  bool* astray;

  FEDEDGE_HD int label(const int64_t* y) const {
    const int64_t found = y[this->index];
    if (job->has(found)) return static_cast<int>(found);
    *astray = true;
    if (this->exchange.lane() == 0) *job->outside = found;
    return 0;
  }

  template <typename U>
  FEDEDGE_HD void store(U* v, int c, T x) const {
    v[c] = static_cast<U>(*astray ? Constants<T>::infinity() - Constants<T>::infinity() : x);
  }
};

// The rows of one group of threads: every `step`-th from `first` on.
struct EachRow {
  template <typename T>
  static int64_t groups(const RowJob<T>& job) {
    return job.rows;
  }

  template <class Kernel, class Exchange>
  FEDEDGE_HD static void run(const Kernel& kernel, const RowJob<typename Kernel::Real>& job,
                             const Exchange& exchange, int64_t first, int64_t step,
                             typename Kernel::Real* scratch) {
    using T = typename Kernel::Real;
    for (int64_t i = first; i < job.rows; i += step) {
      bool astray = false;
      const CheckedLanes<T, Exchange> lanes{{exchange, job.columns, i, scratch}, &job, &astray};
      const T result = kernel(lanes);
      if (exchange.lane() == 0) lanes.store(job.results + i, 0, result);
    }
  }
};

// Lanes that add to the table row of one class only, without atomic additions.
template <typename T, class Exchange>
struct ClassLanes : StridedLanes<T, Exchange> {
  int64_t only;

  using Label = int64_t;

  FEDEDGE_HD Label label(const int64_t* y) const { return y[this->index]; }

  template <int kSlot>
  FEDEDGE_HD void accumulate(Matrix<double> num, Matrix<double> den, const Label* y,
                             const double* share, int labellings, T total) const {
    double* const to = num.row(only);
    for (int i = 0; i < labellings; ++i) {
      if (y[i] != only) continue;
      const double rate = share[i] / static_cast<double>(total);
      this->each([&](int c) FEDEDGE_LAMBDA {
        to[c] += rate * static_cast<double>(this->template kept<kSlot>(c));
      });
      if (this->exchange.lane() == 0) *den.row(only) += share[i];
    }
  }
};

// The classes of one group of threads, and for each class its rows in order, so that the sums are
// deterministic. A row is computed once per label.
struct EachClass {
  template <typename T>
  static int64_t groups(const RowJob<T>& job) {
    return job.columns;
  }

  template <class Kernel, class Exchange>
  FEDEDGE_HD static void run(const Kernel& kernel, const RowJob<typename Kernel::Real>& job,
                             const Exchange& exchange, int64_t first, int64_t step,
                             typename Kernel::Real* scratch) {
    using T = typename Kernel::Real;
    for (int64_t only = first; only < job.columns; only += step) {
      for (int64_t i = 0; i < job.rows; ++i) {
        if (only == 0 && exchange.lane() == 0) report(kernel, job, i);
        if (!concerns(kernel, i, only)) continue;
        kernel(ClassLanes<T, Exchange>{{exchange, job.columns, i, scratch}, only});
      }
    }
  }

 private:
  template <class Kernel>
  FEDEDGE_HD static bool concerns(const Kernel& kernel, int64_t row, int64_t only) {
    bool found = false;
    for (int i = 0; i < kernel.labellings; ++i) found = found || kernel.label[i][row] == only;
    return found;
  }

  template <class Kernel, class Job>
  FEDEDGE_HD static void report(const Kernel& kernel, const Job& job, int64_t row) {
    for (int i = 0; i < kernel.labellings; ++i) {
      if (!job.has(kernel.label[i][row])) *job.outside = kernel.label[i][row];
    }
  }
};

// The launch configuration: a warp or a block per row or class, and the memory of kept numbers.
struct RowPlan {
  static constexpr int kWarp = 32;
  static constexpr int kWarps = 4;  // warps per block, if each warp has its own row
  static constexpr int kNarrowThreads = kWarp * kWarps;
  static constexpr int kBlock = 512;            // threads per block, if a block computes one row
  static constexpr int kNarrow = 1024;          // columns up to which one warp computes a row
  static constexpr int64_t kShared = 48 << 10;  // shared memory per block on every device
  static constexpr int64_t kSlot = 8;           // bytes of shared memory per thread for swaps

  bool narrow;  // one warp per row
  int64_t blocks;
  int64_t shared;   // bytes of shared memory per block
  int64_t scratch;  // bytes of global memory, if the kept numbers do not fit in shared memory

  static RowPlan of(int64_t groups, int columns, int64_t kept_bytes) {
    const int64_t row = kept_bytes * columns;
    if (columns <= kNarrow && kWarps * row <= kShared) {
      return {true, atmost((groups + kWarps - 1) / kWarps, 1 << 16), kWarps * row, 0};
    }
    const int64_t slots = kBlock * kSlot;
    if (slots + row <= kShared) return {false, atmost(groups, 1 << 16), slots + row, 0};
    const int64_t blocks = atmost(groups, 128);  // each block needs its own memory
    return {false, blocks, slots, blocks * row};
  }

 private:
  static int64_t atmost(int64_t n, int64_t limit) { return n < limit ? n : limit; }
};

template <class Way, class Kernel>
RowPlan plan_of(const RowJob<typename Kernel::Real>& job) {
  return RowPlan::of(Way::groups(job), job.columns, Kernel::kKept * sizeof(typename Kernel::Real));
}

}  // namespace fededge
