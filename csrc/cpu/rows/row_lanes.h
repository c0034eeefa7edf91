// RowLanes: rows of few columns, one column of a pack of rows per step.
#pragma once

#include "cpu/rows/transpose.h"
#include "kernels/lanes.h"

namespace fededge::cpu {

// A pack of rows from `index` on. Lanes past the last row repeat it and are not written back.
//
// A view is a transposed copy of the rows in the scratch: one pack per column.
template <typename T, int kRegister>
struct RowLanes {
  using Real = T;
  using Number = Pack<T, kRegister>;
  using Scalar = Number;
  using Column = int;
  using Spread = Scalar;
  static constexpr int kWidth = Number::kWidth;

  struct Label {
    Number number;  // exact up to 2^24 classes
    int of[kWidth];
  };

  template <typename U>
  struct View {
    T* transposed;
    U* row[kWidth];  // where close() writes
  };

  int columns;
  int64_t index;
  T* scratch;
  int rows;                        // valid rows of the pack
  mutable T* free;                 // scratch for the next view
  const int64_t* order = nullptr;  // row indices, or null for consecutive rows

  FEDEDGE_HD View<const T> row(Matrix<const T> m) const {
    if (m && m.stride == 0) return same_for_all(m.data);
    return transposed(m, [&](int i) FEDEDGE_LAMBDA { return m.row(row_index(i)); });
  }

  FEDEDGE_HD View<const T> row(Matrix<const T> m, const Label& y) const {
    if (m && m.stride == 0) return same_for_all(m.data);
    return transposed(m, [&](int i) FEDEDGE_LAMBDA { return m.row(y.of[i]); });
  }

  FEDEDGE_HD View<T> open(Matrix<T> m, bool add = false) const {
    View<T> out = empty<T>();
    if (!m) return out;
    for (int i = 0; i < kWidth; ++i) out.row[i] = m.row(row_index(i));
    if (add) transpose_in<kRegister, kWidth>(out.transposed, out.row, columns);
    return out;
  }

  FEDEDGE_HD void close(const View<T>& v) const {
    transpose_out<kRegister, kWidth>(v.transposed, v.row, rows, columns);
  }

  FEDEDGE_HD Label label(const int64_t* y) const {
    Label out;
    for (int i = 0; i < kWidth; ++i) out.of[i] = static_cast<int>(y[row_index(i)]);
    out.number = Number::gather([&](int i) FEDEDGE_LAMBDA { return static_cast<T>(out.of[i]); });
    return out;
  }

  FEDEDGE_HD Spread spread(const Scalar& x) const { return x; }

  FEDEDGE_HD Number of(const Spread& x, int) const { return x; }

  template <typename U>
  FEDEDGE_HD Number load(const View<U>& v, int c) const {
    return Number::load(v.transposed + c * kWidth);
  }

  FEDEDGE_HD void store(const View<T>& v, int c, const Number& x) const {
    x.store(v.transposed + c * kWidth);
  }

  FEDEDGE_HD void add(const View<T>& v, int c, const Number& x) const {
    store(v, c, load(v, c) + x);
  }

  template <typename U>
  FEDEDGE_HD Number at(const View<U>& v, const Label& y) const {
    return Number::gather([&](int i) FEDEDGE_LAMBDA { return v.transposed[y.of[i] * kWidth + i]; });
  }

  FEDEDGE_HD Number diagonal(Matrix<const T> m, const Label& y) const {
    return Number::gather([&](int i) FEDEDGE_LAMBDA { return m.row(y.of[i])[y.of[i]]; });
  }

  FEDEDGE_HD void take(const View<T>& v, const Label& y, const Number& x) const {
    T amount[kWidth];
    x.store(amount);
    for (int i = 0; i < rows; ++i) v.row[i][y.of[i]] -= amount[i];
  }

  template <int kSlot>
  FEDEDGE_HD void keep(int c, const Number& x) const {
    x.store(scratch + (kSlot * columns + c) * kWidth);
  }

  template <int kSlot>
  FEDEDGE_HD Number kept(int c) const {
    return Number::load(scratch + (kSlot * columns + c) * kWidth);
  }

  FEDEDGE_HD auto is(int c, const Label& y) const { return y.number == static_cast<T>(c); }

  template <class F>
  FEDEDGE_HD Scalar mended(const Scalar& x, const Mask<T, kRegister>& held, F f) const {
    return cpu::mended(x, held, rows, [&](int i) FEDEDGE_LAMBDA {
      T found[kWidth];
      f(RowLanes{columns, row_index(i), scratch, 1, free, nullptr}).store(found);
      return found[0];
    });
  }

  FEDEDGE_HD void fetch(Matrix<double>, const Label&, int) const {}

  template <int kSlot>
  FEDEDGE_HD void accumulate(Matrix<double> num, Matrix<double> den, const Label* y,
                             const double* share, int labellings, const Scalar& total) const {
    const T* from = scratch + kSlot * columns * kWidth;
    T totals[kWidth];
    total.store(totals);
    for (int k = 0; k < labellings; ++k) {
      for (int i = 0; i < rows; ++i) {
        double* const to = num.row(y[k].of[i]);
        const double rate = share[k] / static_cast<double>(totals[i]);
        for (int c = 0; c < columns; ++c) {
          to[c] += rate * static_cast<double>(from[c * kWidth + i]);
        }
        *den.row(y[k].of[i]) += share[k];
      }
    }
  }

  template <class F>
  FEDEDGE_HD void each(F f) const {
    for (int c = 0; c < columns; ++c) f(c);
  }

  template <class F>
  FEDEDGE_HD Number max(F f) const {
    Number most = f(0);
    for (int c = 1; c < columns; ++c) most = larger(f(c), most);
    return most;
  }

  template <class F>
  FEDEDGE_HD auto sum(F f) const {
    auto total = f(0);
    for (int c = 1; c < columns; ++c) {
      const auto part = f(c);
      for (int i = 0; i < int(sizeof(part) / sizeof(Number)); ++i) {
        total.of[i] = total.of[i] + part.of[i];
      }
    }
    return total;
  }

 private:
  FEDEDGE_HD int64_t row_index(int i) const {
    const int64_t place = index + (i < rows ? i : rows - 1);
    return order == nullptr ? place : order[place];
  }

  template <typename U>
  FEDEDGE_HD View<U> empty() const {
    View<U> out;
    out.transposed = free;
    free += columns * kWidth;
    return out;
  }

  FEDEDGE_HD View<const T> same_for_all(const T* numbers) const {
    const View<const T> out = empty<const T>();
    for (int c = 0; c < columns; ++c) Number(numbers[c]).store(out.transposed + c * kWidth);
    return out;
  }

  template <class F>
  FEDEDGE_HD View<const T> transposed(Matrix<const T> m, F row) const {
    View<const T> out = empty<const T>();
    if (!m) return out;
    for (int i = 0; i < kWidth; ++i) out.row[i] = row(i);
    transpose_in<kRegister, kWidth>(out.transposed, out.row, columns);
    return out;
  }
};

}  // namespace fededge::cpu
