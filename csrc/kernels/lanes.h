// Lanes: how the columns of a row are divided among those that compute it.
//
// The maths of one row is written once, over a `Lanes` that supplies the columns and the reductions
// over them. There are four kinds:
//
//   StridedLanes   kernels/lanes.h       a warp or block; each thread takes every n-th column
//   ColumnLanes    cpu/rows/column_lanes.h    a pack of columns of one row
//   RowLanes       cpu/rows/row_lanes.h       one column of a pack of rows
//   BlockLanes     cpu/rows/block_lanes.h     packs of columns of several rows
//
// LanesContract lists what a Lanes offers, and the compiler checks it.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/numbers/host_device.h"
#include "kernels/numbers/maths.h"

namespace fededge {

// A matrix with `stride` numbers between rows; a stride of 0 repeats one row. Columns are
// contiguous.
template <typename T>
struct Matrix {
  T* data = nullptr;
  int64_t stride = 0;

  FEDEDGE_HD explicit operator bool() const { return data != nullptr; }
  FEDEDGE_HD T* row(int64_t i) const { return data + i * stride; }
};

// Several sums that are computed in one pass.
template <class Number, int kCount>
struct Sums {
  Number of[kCount];
};

// The contract of a Lanes L. Every row kernel asserts it: static_assert(LanesContract<L>::kHolds).
template <class L>
struct LanesContract {
 private:
  // A function of a column that returns an R, and one of a Lanes that returns its Scalar.
  template <class R>
  struct OfColumn {
    FEDEDGE_HD R operator()(const typename L::Column&) const { return R(); }
  };
  struct OfLanes {
    template <class Other>
    FEDEDGE_HD typename Other::Scalar operator()(const Other&) const {
      return typename Other::Scalar();
    }
  };

  static const L& lanes();
  template <class T>
  static const T& a();

 public:
  using Real = typename L::Real;
  static_assert(std::is_same_v<Real, float> || std::is_same_v<Real, double>);
  // One column's number, a row's number, and a row's label. A Number or Scalar is a Real or a pack.
  using Number = typename L::Number;
  using Scalar = typename L::Scalar;
  using Label = typename L::Label;
  // A column, as each(f), max(f) and sum(f) pass it to f, and a Scalar prepared for use by columns.
  using Column = typename L::Column;
  using Spread = typename L::Spread;

  static_assert(std::is_constructible_v<Number, Real> && std::is_constructible_v<Scalar, Real>);
  static_assert(std::is_convertible_v<decltype(lanes().columns), int>, "the number of columns");
  static_assert(std::is_same_v<Label, decltype(lanes().label(a<const int64_t*>()))>);

  // row(m): this row of a matrix. row(m, y): row y of a table. A view is valid as long as the Lanes
  // that made it: a function that creates views takes its Lanes by value.
  using View = decltype(lanes().row(a<Matrix<const Real>>()));
  static_assert(std::is_same_v<View, decltype(lanes().row(a<Matrix<const Real>>(), a<Label>()))>);
  // open(m, add): this row of an output; `add` loads the present values. close(v) writes it back.
  using Output = decltype(lanes().open(a<Matrix<Real>>(), true));
  static_assert(std::is_void_v<decltype(lanes().close(a<Output>()))>);

  // load, store and add by column. each(f) may visit a column twice: both stores must write the
  // same value, and add() counts once.
  static_assert(std::is_same_v<Number, decltype(lanes().load(a<View>(), a<Column>()))>);
  static_assert(std::is_void_v<decltype(lanes().store(a<Output>(), a<Column>(), a<Number>()))>);
  static_assert(std::is_void_v<decltype(lanes().add(a<Output>(), a<Column>(), a<Number>()))>);
  // at(v, y): the column of label y. diagonal(m, y): row y, column y of a table. take(v, y, x):
  // subtracts x from the column of label y; only after close(v).
  static_assert(std::is_same_v<Scalar, decltype(lanes().at(a<View>(), a<Label>()))>);
  static_assert(
      std::is_same_v<Scalar, decltype(lanes().diagonal(a<Matrix<const Real>>(), a<Label>()))>);
  static_assert(std::is_void_v<decltype(lanes().take(a<Output>(), a<Label>(), a<Scalar>()))>);
  // keep<i>(c, x) and kept<i>(c): scratch memory, slot i of column c.
  static_assert(std::is_void_v<decltype(lanes().template keep<0>(a<Column>(), a<Number>()))>);
  static_assert(std::is_same_v<Number, decltype(lanes().template kept<0>(a<Column>()))>);
  // is(c, y): a mask, true in the column of label y.
  static_assert(std::is_same_v<Number, decltype(where(lanes().is(a<Column>(), a<Label>()),
                                                      a<Number>(), a<Number>()))>);
  // spread(x) prepares a Scalar for the columns, and of(s, c) is its value in column c.
  static_assert(std::is_same_v<Spread, decltype(lanes().spread(a<Scalar>()))>);
  static_assert(std::is_constructible_v<Number, decltype(lanes().of(a<Spread>(), a<Column>()))>);
  // Loops over all columns. sum(f) adds up several sums at once.
  static_assert(std::is_void_v<decltype(lanes().each(a<OfColumn<Number>>()))>);
  static_assert(std::is_same_v<Scalar, decltype(lanes().max(a<OfColumn<Number>>()))>);
  static_assert(
      std::is_same_v<Sums<Scalar, 2>, decltype(lanes().sum(a<OfColumn<Sums<Number, 2>>>()))>);
  // mended(x, ok, f): x, with f(lanes of that row alone) in every row whose condition is false.
  static_assert(std::is_same_v<Scalar, decltype(lanes().mended(
                                           a<Scalar>(), a<Scalar>() > a<Scalar>(), a<OfLanes>()))>);
  // fetch(num, y, c): a prefetch hint for column c of row y.
  static_assert(
      std::is_void_v<decltype(lanes().fetch(a<Matrix<double>>(), a<Label>(), a<Column>()))>);

  static constexpr bool kHolds = true;
};

// The contract of a Lanes whose rows may be added to a table by class. On a device only lanes that
// own a class do this (ClassLanes in kernels/grid.h).
//
// accumulate<i>(num, den, y, share, labellings, total): for each labelling, adds its share to row y
// of `den`, and share * kept<i> / total to row y of `num`.
template <class L>
struct AccumulatingLanesContract : LanesContract<L> {
  static_assert(std::is_void_v<decltype(std::declval<const L&>().template accumulate<0>(
                    Matrix<double>(), Matrix<double>(), std::declval<const typename L::Label*>(),
                    std::declval<const double*>(), 1, std::declval<typename L::Scalar>()))>);
};

// One of `exchange.width()` threads, a power of two, that compute a row together.
//
// Exchange has lane(), the thread's number, and swap(x, mask), the x of lane `lane() ^ mask`
// (__shfl_xor_sync in a warp). All lanes must reach every swap.
template <typename T, class Exchange>
struct StridedLanes {
  using Real = T;
  using Number = T;
  using Scalar = T;
  using Label = int;
  using Column = int;
  using Spread = T;

  Exchange exchange;
  int columns;
  int64_t index;  // of the row
  T* scratch;     // `columns` numbers per slot of keep<i>

  template <typename U>
  FEDEDGE_HD U* row(Matrix<U> m) const {
    return m.row(index);
  }

  template <typename U>
  FEDEDGE_HD U* row(Matrix<U> m, Label y) const {
    return m.row(y);
  }

  template <typename U>
  FEDEDGE_HD U* open(Matrix<U> m, bool = false) const {
    return m.row(index);
  }

  template <typename U>
  FEDEDGE_HD void close(U*) const {}

  FEDEDGE_HD Label label(const int64_t* y) const { return static_cast<Label>(y[index]); }

  FEDEDGE_HD T spread(T x) const { return x; }

  FEDEDGE_HD T of(T x, int) const { return x; }

  template <typename U>
  FEDEDGE_HD T load(const U* v, int c) const {
    return static_cast<T>(v[c]);
  }

  template <typename U>
  FEDEDGE_HD void store(U* v, int c, T x) const {
    v[c] = static_cast<U>(x);
  }

  template <typename U>
  FEDEDGE_HD void add(U* v, int c, T x) const {
    v[c] = static_cast<U>(static_cast<T>(v[c]) + x);
  }

  template <typename U>
  FEDEDGE_HD T at(const U* v, Label y) const {
    return static_cast<T>(v[y]);
  }

  FEDEDGE_HD T diagonal(Matrix<const T> m, Label y) const { return m.row(y)[y]; }

  template <typename U>
  FEDEDGE_HD void take(U* v, Label y, T x) const {
    if (y % exchange.width() == exchange.lane()) v[y] = static_cast<U>(static_cast<T>(v[y]) - x);
  }

  template <int kSlot>
  FEDEDGE_HD void keep(int c, T x) const {
    scratch[kSlot * columns + c] = x;
  }

  template <int kSlot>
  FEDEDGE_HD T kept(int c) const {
    return scratch[kSlot * columns + c];
  }

  FEDEDGE_HD bool is(int c, Label y) const { return c == y; }

  template <class F>
  FEDEDGE_HD T mended(T x, bool held, F f) const {
    return held ? x : f(*this);
  }

  template <class Y>
  FEDEDGE_HD void fetch(Matrix<double>, const Y&, int) const {}

  template <class F>
  FEDEDGE_HD void each(F f) const {
    for (int c = exchange.lane(); c < columns; c += exchange.width()) f(c);
  }

  template <class F>
  FEDEDGE_HD T max(F f) const {
    T most = -Constants<T>::infinity();
    each([&](int c) FEDEDGE_LAMBDA { most = larger(f(c), most); });
    for (int mask = exchange.width() / 2; mask > 0; mask /= 2) {
      most = larger(exchange.swap(most, mask), most);
    }
    return most;
  }

  template <class F>
  FEDEDGE_HD auto sum(F f) const {
    decltype(f(0)) total{};
    each([&](int c) FEDEDGE_LAMBDA { total = added(total, f(c)); });
    for (int mask = exchange.width() / 2; mask > 0; mask /= 2) {
      for (T& one : total.of) one = one + exchange.swap(one, mask);
    }
    return total;
  }

 private:
  template <int kCount>
  FEDEDGE_HD static Sums<T, kCount> added(Sums<T, kCount> a, const Sums<T, kCount>& b) {
    for (int i = 0; i < kCount; ++i) a.of[i] = a.of[i] + b.of[i];
    return a;
  }
};

}  // namespace fededge
