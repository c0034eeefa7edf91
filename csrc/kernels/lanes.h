// How the columns of a row are shared out among those who compute it.
//
// The maths of one row is written once, over a `Lanes` that supplies the columns and what needs all
// of them together. There are four: a warp or block with a column for each thread at a time
// (StridedLanes, below), and on the host a pack of columns of one row (cpu/lanes.h), one column of a
// pack of rows (cpu/row_lanes.h), or packs of columns of several rows (cpu/block_lanes.h). What a Lanes offers:
//
//   Real     float or double
//   Number   what one column is computed in: a Real, or a pack of them
//   Scalar   what belongs to a row as a whole: a Real, or a pack of them
//   Label    a row's label
//   row(m), row(m, y)   this row of a matrix; row y of a table. Views live as long as the Lanes does
//            that made them: a function that makes some takes its Lanes by value
//   open(m, add), close(v)   this row of a matrix that is written, with what is in it if that is added
//            to; after close it is there, and take may follow
//   diagonal(m, y)   the number in row y and column y of a table
//   load(v, c), store(v, c, x), add(v, c, x)   by column. A column may be met twice by each(f): what
//            is stored must be the same both times, and is added once
//   at(v, y), take(v, y, x)   one label's column; x taken from it, after close
//   keep<i>(c, x), kept<i>(c)   the i-th number that each column may put by
//   is(c, y)   whether column c is label y's
//   spread(x), of(s, c)   a row's Scalar for the use of its columns, and what column c sees of it
//   max(f), sum(f), each(f)   over all columns; f takes a column, of sum it returns Sums
//   mended(x, held, f)   a Scalar, in which every row that a condition does not hold for has the
//            f(lanes) of lanes with this row alone
//   fetch(num, y, c)   a hint that column c of num's row y will be added to
//   accumulate<i>(num, den, y, share, labellings, total)   for each of the labellings, add the share
//            to den's row y, of one column, and to num's row y in proportion to what each column kept
//            of a total. On a device only lanes that have a class to themselves do (ClassLanes, grid.h)
#pragma once

#include "kernels/host_device.h"
#include "kernels/maths.h"

namespace fededge {

// Rows of `stride` numbers each; a stride of 0 is one row for all. Columns lie side by side.
template <typename T>
struct Matrix {
  T* data = nullptr;
  int64_t stride = 0;

  FEDEDGE_HD explicit operator bool() const { return data != nullptr; }
  FEDEDGE_HD T* row(int64_t i) const { return data + i * stride; }
};

// Several sums that are made in one pass.
template <class Number, int kCount>
struct Sums {
  Number of[kCount];
};

// One thread of `exchange.width()`, a power of two, that compute a row together.
//
// Exchange gives the thread's own `lane()` and `swap(x, mask)`: the x of the lane whose number
// differs in the bits of `mask` (__shfl_xor_sync in a warp). Every lane comes to every swap.
template <typename T, class Exchange>
struct StridedLanes {
  using Real = T;
  using Number = T;
  using Scalar = T;
  using Label = int;
  using Spread = T;

  Exchange exchange;
  int columns;
  int64_t index;  // of the row
  T* scratch;     // `columns` numbers for each kept<i>

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
