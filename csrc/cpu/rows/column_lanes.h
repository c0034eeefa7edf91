// ColumnLanes: one row at a time, a pack of columns per step. For short rows there are row_lanes.h
// and block_lanes.h.
#pragma once

#include "cpu/pack.h"
#include "kernels/lanes.h"

namespace fededge::cpu {

// A pack of columns from `start` on. The last pack of a row is moved back to end with the row, and
// its first `stale` columns were visited before. Its scratch still has a `place` of its own: loads
// that span two recent stores are slow.
struct Columns {
  int start;
  int place;
  int stale;
};

// The row must have at least one pack of columns.
template <typename T, int kRegister>
struct ColumnLanes {
  using Real = T;
  using Number = Pack<T, kRegister>;
  using Scalar = T;
  using Label = int;
  using Column = Columns;
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

  FEDEDGE_HD T* open(Matrix<T> m, bool = false) const { return m.row(index); }

  FEDEDGE_HD void close(T*) const {}

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

  FEDEDGE_HD T diagonal(Matrix<const T> m, Label y) const { return m.row(y)[y]; }

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

  template <class F>
  FEDEDGE_HD T mended(T x, bool held, F f) const {
    return held ? x : f(*this);
  }

  FEDEDGE_HD void fetch(Matrix<double> num, Label y, Columns c) const {
    for (int i = 0; i < kWidth; i += 8) __builtin_prefetch(num.row(y) + c.start + i, 1);
  }

  template <int kSlot>
  FEDEDGE_HD void accumulate(Matrix<double> num, Matrix<double> den, const Label* y,
                             const double* share, int labellings, T total) const {
    for (int i = 0; i < labellings; ++i) {
      add_kept<kSlot>(num.row(y[i]), share[i] / static_cast<double>(total));
      *den.row(y[i]) += share[i];
    }
  }

  // Adds one register of doubles at a time. The remainder after the whole packs may overlap the
  // last register before it. That overlapping register is stored first, so that it does not read a
  // recent store, and the other one then overwrites the columns that both contain.
  template <int kSlot>
  FEDEDGE_HD void add_kept(double* to, double rate) const {
    constexpr int kDoubles = kRegister / int(sizeof(double));
    const T* const from = slot<kSlot>();
    const int whole = columns - columns % kWidth;
    const int over = columns - whole;
#pragma GCC unroll 2
    for (int c = 0; c < whole - kDoubles; c += kDoubles) sum(to + c, from + c, rate).store(to + c);
    const Register before = sum(to + whole - kDoubles, from + whole - kDoubles, rate);
    const T* const last = from + whole + kWidth;  // the end of the last kept pack
    const int ragged = padded(over, kDoubles);
    if (over > 0) sum(to + columns - ragged, last - ragged, rate).store(to + columns - ragged);
    before.store(to + whole - kDoubles);
    for (int c = ragged - kDoubles; c > 0; c -= kDoubles) {
      sum(to + columns - c, last - c, rate).store(to + columns - c);
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

  struct Register {
    typename Vector<double, kRegister>::Type numbers;

    FEDEDGE_HD void store(double* to) const {
      *reinterpret_cast<typename Vector<double, kRegister>::Loose*>(to) = numbers;
    }
  };

  // to + rate * from
  FEDEDGE_HD static Register sum(const double* to, const T* from, double rate) {
    using Numbers = typename Vector<double, kRegister>::Type;
    const Numbers sum = *reinterpret_cast<const typename Vector<double, kRegister>::Loose*>(to);
    return {fused_registers<double, kRegister>(widened<kRegister>(from), rate + Numbers{}, sum)};
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

}  // namespace fededge::cpu
