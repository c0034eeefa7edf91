// BlockLanes: rows of medium width, several in each pass.
//
// The maximum, the sum and the quotient of one row depend on each other, and in a short row this
// latency exceeds the time of the columns. Several rows per pass hide it: the processor continues
// with the next row. The arithmetic of each row is that of ColumnLanes.
#pragma once

#include "cpu/rows/column_lanes.h"

namespace fededge::cpu {

template <typename T, int kRegister>
struct BlockLanes {
  using One = ColumnLanes<T, kRegister>;
  using Real = T;
  using Number = typename One::Number;
  using Scalar = Number;  // one number per row
  static constexpr int kWidth = Number::kWidth;

  template <typename U>
  struct ByRow {
    U of[kWidth];
  };

  using Label = ByRow<int>;
  using Spread = ByRow<T>;
  template <typename U>
  using View = ByRow<U*>;

  struct Column {
    int row;
    Columns in;
  };

  int columns;
  int64_t index;
  T* scratch;
  int64_t room;                    // scratch numbers per row
  int rows;                        // at most kWidth; if fewer, the last row is repeated
  const int64_t* order = nullptr;  // row indices, or null for consecutive rows

  template <typename U>
  FEDEDGE_HD View<U> row(Matrix<U> m) const {
    return by_row<U*>([&](int i) FEDEDGE_LAMBDA { return m.row(row_index(i)); });
  }

  template <typename U>
  FEDEDGE_HD View<U> row(Matrix<U> m, const Label& y) const {
    return by_row<U*>([&](int i) FEDEDGE_LAMBDA { return m.row(y.of[i]); });
  }

  FEDEDGE_HD View<T> open(Matrix<T> m, bool = false) const { return row(m); }

  FEDEDGE_HD void close(const View<T>&) const {}

  FEDEDGE_HD Label label(const int64_t* y) const {
    return by_row<int>([&](int i) FEDEDGE_LAMBDA { return static_cast<int>(y[row_index(i)]); });
  }

  FEDEDGE_HD Spread spread(const Scalar& x) const {
    Spread out;
    x.store(out.of);
    return out;
  }

  FEDEDGE_HD T of(const Spread& x, Column c) const { return x.of[c.row]; }

  template <typename U>
  FEDEDGE_HD Number load(const View<U>& v, Column c) const {
    return one(c.row).load(v.of[c.row], c.in);
  }

  FEDEDGE_HD void store(const View<T>& v, Column c, const Number& x) const {
    one(c.row).store(v.of[c.row], c.in, x);
  }

  FEDEDGE_HD void add(const View<T>& v, Column c, const Number& x) const {
    one(c.row).add(v.of[c.row], c.in, x);
  }

  template <typename U>
  FEDEDGE_HD Scalar at(const View<U>& v, const Label& y) const {
    return packed(by_row<T>([&](int i) FEDEDGE_LAMBDA { return v.of[i][y.of[i]]; }));
  }

  FEDEDGE_HD Scalar diagonal(Matrix<const T> m, const Label& y) const {
    return packed(by_row<T>([&](int i) FEDEDGE_LAMBDA { return m.row(y.of[i])[y.of[i]]; }));
  }

  FEDEDGE_HD void take(const View<T>& v, const Label& y, const Scalar& x) const {
    const Spread amount = spread(x);
    for (int i = 0; i < rows; ++i) one(i).take(v.of[i], y.of[i], amount.of[i]);
  }

  template <int kSlot>
  FEDEDGE_HD void keep(Column c, const Number& x) const {
    one(c.row).template keep<kSlot>(c.in, x);
  }

  template <int kSlot>
  FEDEDGE_HD Number kept(Column c) const {
    return one(c.row).template kept<kSlot>(c.in);
  }

  FEDEDGE_HD auto is(Column c, const Label& y) const { return one(c.row).is(c.in, y.of[c.row]); }

  template <class F>
  FEDEDGE_HD Scalar mended(const Scalar& x, const Mask<T, kRegister>& held, F f) const {
    return cpu::mended(x, held, rows, [&](int i) FEDEDGE_LAMBDA { return f(one(i)); });
  }

  FEDEDGE_HD void fetch(Matrix<double> num, const Label& y, Column c) const {
    one(c.row).fetch(num, y.of[c.row], c.in);
  }

  template <int kSlot>
  FEDEDGE_HD void accumulate(Matrix<double> num, Matrix<double> den, const Label* y,
                             const double* share, int labellings, const Scalar& total) const {
    const Spread totals = spread(total);
    for (int k = 0; k < labellings; ++k) {
      double rates[kWidth];  // vectorised: one division takes longer than adding one register
      for (int i = 0; i < kWidth; ++i) rates[i] = share[k] / static_cast<double>(totals.of[i]);
      for (int i = 0; i < rows; ++i) {
        one(i).template add_kept<kSlot>(num.row(y[k].of[i]), rates[i]);
        *den.row(y[k].of[i]) += share[k];
      }
    }
  }

  template <class F>
  FEDEDGE_HD void each(F f) const {
    for (int i = 0; i < rows; ++i) {
      one(i).each([&](Columns c) FEDEDGE_LAMBDA { f(Column{i, c}); });
    }
  }

  template <class F>
  FEDEDGE_HD Scalar max(F f) const {
    return packed(by_row<T>([&](int i) FEDEDGE_LAMBDA {
      return one(i).max([&](Columns c) FEDEDGE_LAMBDA { return f(Column{i, c}); });
    }));
  }

  template <class F>
  FEDEDGE_HD auto sum(F f) const {
    decltype(f(Column{})) out;
    constexpr int kCount = sizeof(out) / sizeof(Number);
    Spread sums[kCount];
    for (int i = 0; i < kWidth; ++i) {
      if (i < rows) {
        const auto found = one(i).sum([&](Columns c) FEDEDGE_LAMBDA { return f(Column{i, c}); });
        for (int k = 0; k < kCount; ++k) sums[k].of[i] = found.of[k];
      } else {
        for (int k = 0; k < kCount; ++k) sums[k].of[i] = sums[k].of[rows - 1];
      }
    }
    for (int k = 0; k < kCount; ++k) out.of[k] = packed(sums[k]);
    return out;
  }

 private:
  FEDEDGE_HD int64_t row_index(int i) const {
    return order == nullptr ? index + i : order[index + i];
  }

  FEDEDGE_HD One one(int i) const { return {columns, row_index(i), scratch + i * room}; }

  FEDEDGE_HD static Scalar packed(const Spread& x) { return Scalar::load(x.of); }

  template <typename U, class F>
  FEDEDGE_HD ByRow<U> by_row(F f) const {
    ByRow<U> out;
    for (int i = 0; i < rows; ++i) out.of[i] = f(i);
    for (int i = rows; i < kWidth; ++i) out.of[i] = out.of[rows - 1];
    return out;
  }
};

}  // namespace fededge::cpu
