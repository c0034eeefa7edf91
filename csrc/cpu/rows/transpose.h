// Transposes a pack of rows into columns and back.
#pragma once

#include "cpu/pack.h"

namespace fededge::cpu {

// Shuffles two registers by index. GCC compiles only this form to a shuffle instruction.
#if defined(__clang__)
#define FEDEDGE_SHUFFLE(Places, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define FEDEDGE_SHUFFLE(Places, a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

// A square of numbers with lines of 16 bytes.
template <typename T>
struct Square {
  static constexpr int kSide = 16 / int(sizeof(T));
  using Line = typename Vector<T, 16>::Type;
  using Loose = typename Vector<T, 16>::Loose;
  using Places = typename Vector<typename Integer<T>::Signed, 16>::Type;

  Line line[kSide];

  FEDEDGE_HD static Line load(const T* from) { return *reinterpret_cast<const Loose*>(from); }
  FEDEDGE_HD static void store(T* to, Line x) { *reinterpret_cast<Loose*>(to) = x; }

  FEDEDGE_HD Square transposed() const {
    if constexpr (kSide == 4) {
      const Line even = first(line[0], line[2]), even2 = second(line[0], line[2]);
      const Line odd = first(line[1], line[3]), odd2 = second(line[1], line[3]);
      return {{first(even, odd), second(even, odd), first(even2, odd2), second(even2, odd2)}};
    } else {
      return {{first(line[0], line[1]), second(line[0], line[1])}};
    }
  }

 private:
  // Interleaves the first halves, or the second halves, of two lines.
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

// Calls f(first) for groups of `side` columns. The last group may overlap the one before it.
template <class F>
FEDEDGE_HD void each_group(int columns, int side, F f) {
  for (int c = 0; c + side < columns; c += side) f(c);
  f(columns - side);
}

// to[c * kRows + i] = row[i][c]. kRows is a multiple of a square's side.
template <int kRegister, int kRows, typename T>
FEDEDGE_APART void transpose_in(T* to, const T* const* row, int columns) {
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
      square = square.transposed();
      for (int j = 0; j < S::kSide; ++j) S::store(to + (c + j) * kRows + i, square.line[j]);
    }
  });
}

// row[i][c] = from[c * kRows + i], for the first `rows` rows.
template <int kRegister, int kRows, typename T>
FEDEDGE_APART void transpose_out(const T* from, T* const* row, int rows, int columns) {
  using S = Square<T>;
  const int whole = columns < S::kSide ? 0 : rows - rows % S::kSide;
  for (int i = 0; i < whole; i += S::kSide) {
    each_group(columns, S::kSide, [&](int c) FEDEDGE_LAMBDA {
      S square;
      for (int j = 0; j < S::kSide; ++j) square.line[j] = S::load(from + (c + j) * kRows + i);
      square = square.transposed();
      for (int j = 0; j < S::kSide; ++j) S::store(row[i + j] + c, square.line[j]);
    });
  }
  for (int i = whole; i < rows; ++i) {
    for (int c = 0; c < columns; ++c) row[i][c] = from[c * kRows + i];
  }
}

}  // namespace fededge::cpu
