// The loops of the convolution's gradients, compiled once per instruction set.
//
// At most one in four numbers of the feature map has a slope, and only these are visited. Lanes run
// over a row of a patch, and each sum adds its terms in the order of the slopes: the bits do not
// depend on the size of the registers.
#pragma once

#include "cpu/convolution_loops.h"

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
    const V slope = slopes.data[s].value - V{};  // broadcast
    const float* const from = image + slopes.data[s].at;
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

// One row of a patch. Lanes beyond its end keep their values: 0 times infinity would be NaN.
template <int kRegister>
FEDEDGE_HD void add_row_to_image(Floats<kRegister> slope, const float* weight, int64_t run,
                                 decltype(slope > slope) last, float* to) {
  constexpr int64_t kLanes = kRegister / 4;
  int64_t t = 0;
  for (; t + kLanes <= run; t += kLanes) {
    const auto had = load<kRegister>(to + t);
    store<kRegister>(fused_registers<float, kRegister>(slope, load<kRegister>(weight + t), had),
                     to + t);
  }
  if (t == run) return;
  const auto had = load<kRegister>(to + t);
  const auto gets = fused_registers<float, kRegister>(slope, load<kRegister>(weight + t), had);
  store<kRegister>(last ? gets : had, to + t);
}

template <int kRegister>
FEDEDGE_HD void add_to_image(const Patches& p, Slopes slopes, const float* weight, float* image) {
  using V = Floats<kRegister>;
  constexpr int kLanes = kRegister / 4;
  decltype(V{} > V{}) last{};
  for (int i = 0; i < kLanes; ++i) last[i] = i < p.run % kLanes ? -1 : 0;
  for (int64_t s = 0; s < slopes.count; ++s) {
    const V slope = slopes.data[s].value - V{};  // broadcast
    float* const to = image + slopes.data[s].at;
    for (int64_t i = 0; i < p.rows; ++i) {
      add_row_to_image<kRegister>(slope, weight + i * p.stride, p.run, last, to + i * p.row);
    }
  }
}

// Defines the three entry points of cpu/convolution.h for an instruction set with registers of
// `kRegister` bytes.
#define FEDEDGE_CONVOLUTIONS(isa, kRegister)                                                      \
  void convolve_##isa(const Convolution& layer, const float* image, float* out, uint8_t* where) { \
    convolve<kRegister>(layer, image, out, where);                                                \
  }                                                                                               \
  void add_to_weight_##isa(const Patches& p, Slopes slopes, const float* image, float* weight) {  \
    add_to_weight<kRegister>(p, slopes, image, weight);                                           \
  }                                                                                               \
  void add_to_image_##isa(const Patches& p, Slopes slopes, const float* weight, float* image) {   \
    add_to_image<kRegister>(p, slopes, weight, image);                                            \
  }

}  // namespace fededge::cpu
