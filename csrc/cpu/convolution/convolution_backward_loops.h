// The loops of the convolution's gradients, compiled once per instruction set.
//
// At most one in four numbers of the feature map has a slope, and only these are visited. Lanes run
// over a row of a patch, and each sum adds its terms in the order of the slopes: the bits do not
// depend on the size of the registers.
#pragma once

#include "cpu/convolution/convolution_loops.h"

namespace fededge::cpu {

// Rows of a patch, and registers per row, whose sums are held in registers at once. AVX2 has 16.
inline constexpr int kRowsAtOnce = 5;
inline constexpr int kPiecesAtOnce = 2;

template <int kRegister>
FEDEDGE_HD Floats<kRegister> load(const float* from) {
  return *reinterpret_cast<const typename Vector<float, kRegister>::Loose*>(from);
}

template <int kRegister>
FEDEDGE_HD void store(Floats<kRegister> x, float* to) {
  *reinterpret_cast<typename Vector<float, kRegister>::Loose*>(to) = x;
}

// One part of the patch. The terms are summed separately first: a large sum would lose small terms.
template <int kRegister, int kRows, int kPieces>
FEDEDGE_APART void add_part_to_weight(const Patches& p, Slopes slopes, const float* image,
                                      float* weight) {
  using V = Floats<kRegister>;
  constexpr int kLanes = kRegister / 4;
  V sum[kRows][kPieces] = {};
  for (int64_t s = 0; s < slopes.count; ++s) {
    const V slope = slopes.value[s] - V{};  // broadcast
    const float* const from = image + slopes.at[s];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kPieces; ++j) {
        const V x = load<kRegister>(from + i * p.row + j * kLanes);
        sum[i][j] = fused_registers<float, kRegister>(slope, x, sum[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kPieces; ++j) {
      float* const to = weight + i * p.stride + j * kLanes;
      store<kRegister>(load<kRegister>(to) + sum[i][j], to);
    }
  }
}

// Calls add_part_to_weight for at most kRows rows and kPieces registers.
template <int kRegister, int kRows, int kPieces, class... Arguments>
FEDEDGE_HD void add_parts_to_weight(int64_t rows, int64_t pieces, const Arguments&... arguments) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return add_parts_to_weight<kRegister, kRows - 1, kPieces>(rows, pieces, arguments...);
    }
  }
  if constexpr (kPieces > 1) {
    if (pieces < kPieces) {
      return add_parts_to_weight<kRegister, kRows, kPieces - 1>(rows, pieces, arguments...);
    }
  }
  add_part_to_weight<kRegister, kRows, kPieces>(arguments...);
}

template <int kRegister>
FEDEDGE_HD void add_to_weight(const Patches& p, Slopes slopes, const float* image, float* weight) {
  constexpr int64_t kLanes = kRegister / 4;
  const int64_t pieces = (p.run + kLanes - 1) / kLanes;
  for (int64_t i = 0; i < p.rows; i += kRowsAtOnce) {
    for (int64_t j = 0; j < pieces; j += kPiecesAtOnce) {
      add_parts_to_weight<kRegister, kRowsAtOnce, kPiecesAtOnce>(
          p.rows - i, pieces - j, p, slopes, image + i * p.row + j * kLanes,
          weight + i * p.stride + j * kLanes);
    }
  }
}

// Registers of a row of a patch whose sums are held at once. ARM has 32 registers of 16 bytes.
#if defined(__aarch64__)
inline constexpr int kTapsAtOnce = 24;
#else
inline constexpr int kTapsAtOnce = 12;
#endif

// A mask of the first `count` lanes.
template <int kRegister>
FEDEDGE_HD auto first_lanes(int64_t count) {
  Floats<kRegister> number{};
  for (int i = 0; i < kRegister / 4; ++i) number[i] = static_cast<float>(i);
  return number < static_cast<float>(count) - Floats<kRegister>{};
}

// Adds taps to one part of a row. Of the last register only `lanes` lanes change: in the others, 0
// times infinity would be NaN.
template <int kRegister, int kPieces>
FEDEDGE_APART void add_taps(const Tap* tap, const Tap* end, int64_t offset, int64_t lanes,
                            float* to) {
  using V = Floats<kRegister>;
  constexpr int kLanes = kRegister / 4;
  V sum[kPieces];
#pragma GCC unroll 24
  for (int j = 0; j < kPieces; ++j) sum[j] = load<kRegister>(to + j * kLanes);
  for (; tap != end; ++tap) {
    const V slope = tap->value - V{};  // broadcast
    const float* const weight = tap->weight + offset;
#pragma GCC unroll 24
    for (int j = 0; j < kPieces; ++j) {
      sum[j] =
          fused_registers<float, kRegister>(slope, load<kRegister>(weight + j * kLanes), sum[j]);
    }
  }
  float* const last = to + (kPieces - 1) * kLanes;
  sum[kPieces - 1] = first_lanes<kRegister>(lanes) ? sum[kPieces - 1] : load<kRegister>(last);
#pragma GCC unroll 24
  for (int j = 0; j < kPieces; ++j) store<kRegister>(sum[j], to + j * kLanes);
}

// Calls add_taps for 1 to kMost registers.
template <int kRegister, int kMost, class... Arguments>
FEDEDGE_HD void add_pieces(int64_t pieces, const Arguments&... arguments) {
  if constexpr (kMost > 1) {
    if (pieces < kMost) return add_pieces<kRegister, kMost - 1>(pieces, arguments...);
  }
  add_taps<kRegister, kMost>(arguments...);
}

// Adds taps to one row of a patch.
template <int kRegister>
FEDEDGE_HD void add_row_to_image(const Tap* tap, const Tap* end, int64_t offset, int64_t run,
                                 float* to) {
  constexpr int64_t kLanes = kRegister / 4;
  constexpr int kMost = kTapsAtOnce;
  if (tap == end) return;
  for (int64_t t = 0; t < run; t += kMost * kLanes) {
    const int64_t left = run - t, pieces = (left + kLanes - 1) / kLanes;
    const int64_t lanes = pieces > kMost ? kLanes : left - (pieces - 1) * kLanes;
    add_pieces<kRegister, kMost>(pieces, tap, end, offset + t, lanes, to + t);
  }
}

// The slopes of a cell whose patches begin in one column. Those of the upper row come first, so
// that both rows together and each alone are contiguous.
struct Taps {
  Tap* begin;
  Tap* middle;
  Tap* end;
};

// Sorts the slopes of a cell by the column and the row of their patches. Branch-free: a branch
// would be mispredicted, since about half of the outputs have a slope.
template <int kRegister>
FEDEDGE_HD void sort_cell(const Patches& p, int64_t outputs, const uint8_t* where,
                          const float* value, const float* weight, Tap* scratch, Taps (&out)[2]) {
  int64_t next[4] = {outputs - 1, 3 * outputs - 1, outputs, 3 * outputs};  // by place
  for (int64_t o = 0; o < outputs; ++o, weight += p.rows * p.stride) {
    const int place = where[o] & 3, lower = place >> 1;
    scratch[next[place]] = {weight - lower * p.stride, value[o]};
    next[place] += nonzero(value[o]) ? 2 * lower - 1 : 0;
  }
  for (int i = 0; i < 2; ++i) {
    out[i] = {scratch + next[i] + 1, scratch + (2 * i + 1) * outputs, scratch + next[2 + i]};
  }
}

// The sums of a row of a patch stay in registers for all slopes of a cell, of which there are
// several: the patches of a cell differ by one row and one column at most.
template <int kRegister>
FEDEDGE_HD void add_to_image(const Patches& p, const Cells& cells, const float* weight,
                             Tap* scratch, float* image) {
  const uint8_t* where = cells.where;
  const float* value = cells.value;
  for (int64_t y = 0; y < cells.rows; ++y) {
    for (int64_t x = 0; x < cells.columns; ++x) {
      Taps taps[2];
      sort_cell<kRegister>(p, cells.outputs, where, value, weight, scratch, taps);
      float* to = image + 2 * (y * p.row + x * cells.channels);
      for (const Taps& of : taps) {
        for (int64_t i = 0; i <= p.rows; ++i) {
          add_row_to_image<kRegister>(i == p.rows ? of.middle : of.begin,
                                      i == 0 ? of.middle : of.end, i * p.stride, p.run,
                                      to + i * p.row);
        }
        to += cells.channels;
      }
      where += cells.outputs;
      value += cells.outputs;
    }
  }
}

// Defines the three entry points of cpu/convolution/convolution.h for an instruction set with
// registers of `kRegister` bytes.
#define FEDEDGE_CONVOLUTIONS(isa, kRegister)                                                       \
  void convolve_##isa(const Convolution& layer, const float* image, float* out, uint8_t* where) {  \
    convolve<kRegister>(layer, image, out, where);                                                 \
  }                                                                                                \
  void add_to_weight_##isa(const Patches& p, Slopes slopes, const float* image, float* weight) {   \
    add_to_weight<kRegister>(p, slopes, image, weight);                                            \
  }                                                                                                \
  void add_to_image_##isa(const Patches& p, const Cells& cells, const float* weight, Tap* scratch, \
                          float* image) {                                                          \
    add_to_image<kRegister>(p, cells, weight, scratch, image);                                     \
  }

}  // namespace fededge::cpu
