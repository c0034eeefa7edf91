// Rows turned into columns and back: what is done to a column of several rows needs no gathering.
#pragma once

#include "cpu/pack.h"

namespace fededge::cpu {

// The numbers of two registers, chosen by their place in both; written as numbers that are picked one
// by one, GCC would pick them one by one.
#if defined(__clang__)
#define FEDEDGE_SHUFFLE(Places, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define FEDEDGE_SHUFFLE(Places, a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

// As many numbers as 16 bytes hold, of as many rows or columns.
template <typename T>
struct Square {
  static constexpr int kSide = 16 / int(sizeof(T));
  using Line = typename Vector<T, 16>::Type;
  using Loose = typename Vector<T, 16>::Loose;
  using Places = typename Vector<typename Integer<T>::Signed, 16>::Type;

  Line line[kSide];

  FEDEDGE_HD static Line load(const T* from) { return *reinterpret_cast<const Loose*>(from); }
  FEDEDGE_HD static void store(T* to, Line x) { *reinterpret_cast<Loose*>(to) = x; }

  FEDEDGE_HD Square turned() const {
    if constexpr (kSide == 4) {
      const Line even = first(line[0], line[2]), even2 = second(line[0], line[2]);
      const Line odd = first(line[1], line[3]), odd2 = second(line[1], line[3]);
      return {{first(even, odd), second(even, odd), first(even2, odd2), second(even2, odd2)}};
    } else {
      return {{first(line[0], line[1]), second(line[0], line[1])}};
    }
  }

 private:
  // The numbers of both in turns: of their first halves, and of their second.
  FEDEDGE_HD static Line first(Line a, Line b) {
    if constexpr (kSide == 4) {
      return FEDEDGE_SHUFFLE(Places, a, b, 0, 4, 1, 5);
    } else {
      return FEDEDGE_SHUFFLE(Places, a, b, 0, 2);
    }
  }

  FEDEDGE_HD static Line second(Line a, Line b) {
    if constexpr (kSide == 4) {
      return FEDEDGE_SHUFFLE(Places, a, b, 2, 6, 3, 7);
    } else {
      return FEDEDGE_SHUFFLE(Places, a, b, 1, 3);
    }
  }
};
#undef FEDEDGE_SHUFFLE

// Calls f(first) for groups of `side` columns; the last of them may lie across the one before it.
template <class F>
FEDEDGE_HD void each_group(int columns, int side, F f) {
  for (int c = 0; c + side < columns; c += side) f(c);
  f(columns - side);
}

// to[c * kRows + i] = row[i][c]. The rows are a multiple of a square's side.
//
template <int kRegister, int kRows, typename T>
FEDEDGE_APART void turn_in(T* to, const T* const* row, int columns) {
  using S = Square<T>;
  if (columns < S::kSide) {
    for (int i = 0; i < kRows; ++i) {
      for (int c = 0; c < columns; ++c) to[c * kRows + i] = row[i][c];
    }
    return;
  }
  each_group(columns, S::kSide, [&](int c) FEDEDGE_LAMBDA {
    for (int i = 0; i < kRows; i += S::kSide) {
      S square;
      for (int j = 0; j < S::kSide; ++j) square.line[j] = S::load(row[i + j] + c);
      square = square.turned();
      for (int j = 0; j < S::kSide; ++j) S::store(to + (c + j) * kRows + i, square.line[j]);
    }
  });
}

// row[i][c] = from[c * kRows + i], of the first `rows` rows.
template <int kRegister, int kRows, typename T>
FEDEDGE_APART void turn_out(const T* from, T* const* row, int rows, int columns) {
  using S = Square<T>;
  const int whole = columns < S::kSide ? 0 : rows - rows % S::kSide;
  for (int i = 0; i < whole; i += S::kSide) {
    each_group(columns, S::kSide, [&](int c) FEDEDGE_LAMBDA {
      S square;
      for (int j = 0; j < S::kSide; ++j) square.line[j] = S::load(from + (c + j) * kRows + i);
      square = square.turned();
      for (int j = 0; j < S::kSide; ++j) S::store(row[i + j] + c, square.line[j]);
    });
  }
  for (int i = whole; i < rows; ++i) {
    for (int c = 0; c < columns; ++c) row[i][c] = from[c * kRows + i];
  }
}

}  // namespace fededge::cpu
