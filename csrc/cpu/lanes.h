// The host's ways of sharing out a row: a pack of its columns, or a pack of rows at once. For rows
// that lie between them there is a third, in block_lanes.h.
#pragma once

#include "cpu/pack.h"
#include "kernels/lanes.h"

namespace fededge::cpu {

// The columns from `start` on. Of the last ones, which a row's end may cut short, the pack is moved
// back to lie inside the row: its first `stale` columns have been met before. What it keeps has a
// `place` of its own all the same, because to read what was just written across two packs is slow.
struct Columns {
  int start;
  int place;
  int stale;
};

// One row, a pack of columns at a time; at least as many columns as a pack holds.
template <typename T, int kRegister>
struct ColumnLanes {
  using Real = T;
  using Number = Pack<T, kRegister>;
  using Scalar = T;
  using Label = int;
  using Spread = T;
  static constexpr int kWidth = Number::kWidth;

  int columns;
  int64_t index;
  T* scratch;

  template <typename U>
  FEDEDGE_HD U* row(Matrix<U> m) const {
    return m.row(index);
  }

  template <typename U>
  FEDEDGE_HD U* row(Matrix<U> m, Label y) const {
    return m.row(y);
  }

  FEDEDGE_HD Label label(const int64_t* y) const { return static_cast<Label>(y[index]); }

  FEDEDGE_HD T spread(T x) const { return x; }

  FEDEDGE_HD T of(T x, Columns) const { return x; }

  FEDEDGE_HD Number load(const T* v, Columns c) const { return Number::load(v + c.start); }

  FEDEDGE_HD void store(T* v, Columns c, Number x) const { x.store(v + c.start); }

  FEDEDGE_HD void add(T* v, Columns c, Number x) const {
    const Number sum = load(v, c) + x;
    store(v, c, c.stale == 0 ? sum : where(fresh(c), sum, load(v, c)));
  }

  FEDEDGE_HD T at(const T* v, Label y) const { return v[y]; }

  FEDEDGE_HD void take(T* v, Label y, T x) const { v[y] -= x; }

  template <int kSlot>
  FEDEDGE_HD void keep(Columns c, Number x) const {
    x.store(slot<kSlot>() + c.place);
  }

  template <int kSlot>
  FEDEDGE_HD Number kept(Columns c) const {
    return Number::load(slot<kSlot>() + c.place);
  }

  FEDEDGE_HD auto is(Columns c, Label y) const { return lane_is(y - c.start); }

  template <int kSlot>
  FEDEDGE_HD void accumulate(Matrix<double> num, Matrix<double> den, const Label* y,
                             const double* share, int labellings, T total) const {
    const int whole = columns - columns % kWidth;
    const int place = whole + last(whole).stale;
    for (int i = 0; i < labellings; ++i) {
      const double rate = share[i] / static_cast<double>(total);
      add_numbers(num.row(y[i]), slot<kSlot>(), whole, rate);
      add_numbers(num.row(y[i]) + whole, slot<kSlot>() + place, columns - whole, rate);
      *den.row(y[i]) += share[i];
    }
  }

  template <class F>
  FEDEDGE_HD void each(F f) const {
    int c = 0;
    for (; c + kWidth <= columns; c += kWidth) f(Columns{c, c, 0});
    if (c < columns) f(last(c));
  }

  template <class F>
  FEDEDGE_HD T max(F f) const {
    Number most = f(Columns{0, 0, 0});
    int c = kWidth;
    for (; c + kWidth <= columns; c += kWidth) most = larger(f(Columns{c, c, 0}), most);
    if (c < columns) most = larger(f(last(c)), most);
    return reduce(most, [](auto a, auto b) FEDEDGE_LAMBDA { return a > b ? a : b; });
  }

  template <class F>
  FEDEDGE_HD auto sum(F f) const {
    auto total = f(Columns{0, 0, 0});
    int c = kWidth;
    for (; c + kWidth <= columns; c += kWidth) join(total, f(Columns{c, c, 0}));
    if (c < columns) {
      auto part = f(last(c));
      for (Number& one : part.of) one = where(fresh(last(c)), one, Number(T(0)));
      join(total, part);
    }
    return reduced(total);
  }

 private:
  FEDEDGE_HD Columns last(int c) const { return {columns - kWidth, c, kWidth - (columns - c)}; }

  template <int kSlot>
  FEDEDGE_HD T* slot() const {
    return scratch + int64_t{kSlot} * padded(columns, kWidth);
  }

  FEDEDGE_HD static void add_numbers(double* to, const T* from, int count, double rate) {
    for (int i = 0; i < count; ++i) to[i] += rate * static_cast<double>(from[i]);
  }

  template <int kCount>
  FEDEDGE_HD static void join(Sums<Number, kCount>& total, const Sums<Number, kCount>& part) {
    for (int i = 0; i < kCount; ++i) total.of[i] = total.of[i] + part.of[i];
  }

  template <int kCount>
  FEDEDGE_HD static Sums<T, kCount> reduced(const Sums<Number, kCount>& total) {
    Sums<T, kCount> out;
    for (int i = 0; i < kCount; ++i) {
      out.of[i] = reduce(total.of[i], [](auto a, auto b) FEDEDGE_LAMBDA { return a + b; });
    }
    return out;
  }

  FEDEDGE_HD static Mask<T, kRegister> lane_is(int i) {
    return ordinals<T, kRegister>() == static_cast<T>(i);
  }

  FEDEDGE_HD static Mask<T, kRegister> fresh(Columns c) {
    return ordinals<T, kRegister>() > static_cast<T>(c.stale) - T(0.5);
  }
};

// The rows from `index` on, as many as a pack holds, one column at a time. Where the last of them
// lie past the end, the last row stands in for them, and is not written by them.
template <typename T, int kRegister>
struct RowLanes {
  using Real = T;
  using Number = Pack<T, kRegister>;
  using Scalar = Number;
  using Label = Number;  // a whole number; exact up to 2^24 classes, of which there are few here
  using Spread = Scalar;
  static constexpr int kWidth = Number::kWidth;

  template <typename U>
  struct View {
    U* row[kWidth];
  };

  int columns;
  int64_t index;
  T* scratch;
  int rows;  // of the pack, that are there

  template <typename U>
  FEDEDGE_HD View<U> row(Matrix<U> m) const {
    View<U> out;
    for (int i = 0; i < kWidth; ++i) out.row[i] = m.row(row_index(i));
    return out;
  }

  template <typename U>
  FEDEDGE_HD View<U> row(Matrix<U> m, const Label& y) const {
    T label[kWidth];
    y.store(label);
    View<U> out;
    for (int i = 0; i < kWidth; ++i) out.row[i] = m.row(static_cast<int64_t>(label[i]));
    return out;
  }

  FEDEDGE_HD Label label(const int64_t* y) const {
    return Number::gather([&](int i) FEDEDGE_LAMBDA { return static_cast<T>(y[row_index(i)]); });
  }

  FEDEDGE_HD Spread spread(const Scalar& x) const { return x; }

  FEDEDGE_HD Number of(const Spread& x, int) const { return x; }

  template <typename U>
  FEDEDGE_HD Number load(const View<U>& v, int c) const {
    return Number::gather([&](int i) FEDEDGE_LAMBDA { return v.row[i][c]; });
  }

  FEDEDGE_HD void store(const View<T>& v, int c, const Number& x) const {
    T lane[kWidth];
    x.store(lane);
    if (rows == kWidth) {
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) v.row[i][c] = lane[i];
    } else {
      for (int i = 0; i < rows; ++i) v.row[i][c] = lane[i];
    }
  }

  FEDEDGE_HD void add(const View<T>& v, int c, const Number& x) const {
    store(v, c, load(v, c) + x);
  }

  template <typename U>
  FEDEDGE_HD Number at(const View<U>& v, const Label& y) const {
    T label[kWidth];
    y.store(label);
    return Number::gather([&](int i) FEDEDGE_LAMBDA { return v.row[i][int64_t(label[i])]; });
  }

  FEDEDGE_HD void take(const View<T>& v, const Label& y, const Number& x) const {
    T label[kWidth];
    T amount[kWidth];
    y.store(label);
    x.store(amount);
    for (int i = 0; i < rows; ++i) v.row[i][int64_t(label[i])] -= amount[i];
  }

  template <int kSlot>
  FEDEDGE_HD void keep(int c, const Number& x) const {
    x.store(scratch + (kSlot * columns + c) * kWidth);
  }

  template <int kSlot>
  FEDEDGE_HD Number kept(int c) const {
    return Number::load(scratch + (kSlot * columns + c) * kWidth);
  }

  FEDEDGE_HD auto is(int c, const Label& y) const { return y == static_cast<T>(c); }

  template <int kSlot>
  FEDEDGE_HD void accumulate(Matrix<double> num, Matrix<double> den, const Label* y,
                             const double* share, int labellings, const Scalar& total) const {
    const T* from = scratch + kSlot * columns * kWidth;
    T totals[kWidth];
    total.store(totals);
    for (int k = 0; k < labellings; ++k) {
      const View<double> to = row(num, y[k]);
      const View<double> count = row(den, y[k]);
      for (int i = 0; i < rows; ++i) {
        const double rate = share[k] / static_cast<double>(totals[i]);
        for (int c = 0; c < columns; ++c) {
          to.row[i][c] += rate * static_cast<double>(from[c * kWidth + i]);
        }
        *count.row[i] += share[k];
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
  FEDEDGE_HD int64_t row_index(int i) const { return index + (i < rows ? i : rows - 1); }
};

}  // namespace fededge::cpu
