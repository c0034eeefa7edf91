// The loops of a convolution, compiled once per instruction set.
//
// Every output adds its taps in one order: all processors with fused multiply-add give the same
// bits, whatever their registers. Processors without it use torch's convolution.
#pragma once

#include "cpu/convolution.h"
#include "cpu/pack.h"

namespace fededge::cpu {

template <int kRegister>
using Floats = typename Vector<float, kRegister>::Type;

// The maximum of two numbers; NaN if one of them is.
template <class V>
FEDEDGE_HD V pooled(V a, V b) {
  const V most = a > b ? a : b;
  return a == a ? most : a;
}

// The position of the maximum, as in torch's pooling: the first of equal numbers, the last NaN.
// kNone if the ReLU's output is 0.
template <class V>
FEDEDGE_HD auto place(V a, V b, V c, V d) {
  using Places = decltype(a > b);
  V best = a;
  Places at{};
  const auto meet = [&](V x, int number) FEDEDGE_LAMBDA {
    const Places take = (x > best) | (x != x);
    best = take ? x : best;
    at = take ? Places{} + number : at;
  };
  meet(b, 1);
  meet(c, 2);
  meet(d, 3);
  return best <= V{} ? Places{} + kNone : at;
}

// Pooled columns per tile, so that all sums are held in registers. AVX-512 and ARM have 32 of them.
template <int kRegister>
#if defined(__aarch64__)
inline constexpr int kAtOnce = 6;
#else
inline constexpr int kAtOnce = kRegister == 64 ? 6 : 3;
#endif

// The sums of adjacent pooled columns.
template <int kRegister, int kColumns>
struct Tile {
  using V = Floats<kRegister>;
  using Loose = typename Vector<float, kRegister>::Loose;
  static constexpr int kLanes = kRegister / 4;
  static constexpr int kWide = 2 * kColumns;

  V upper[kWide];
  V lower[kWide];

  FEDEDGE_HD explicit Tile(const float* bias) {
#pragma GCC unroll 16
    for (int j = 0; j < kWide; ++j) upper[j] = lower[j] = load(bias);
  }

  // Adds the taps of one image row to the upper and the lower row of the feature map.
  template <bool kUpper, bool kLower>
  FEDEDGE_HD void add(const float* from, const float* weight, int64_t taps, int64_t channels) {
    const float* const before = kLower ? weight - taps * kLanes : weight;
    for (int64_t t = 0; t < taps; ++t) {
      V of_upper, of_lower;
      if constexpr (kUpper) of_upper = load(weight + t * kLanes);
      if constexpr (kLower) of_lower = load(before + t * kLanes);
#pragma GCC unroll 16
      for (int j = 0; j < kWide; ++j) {
        const V x = from[j * channels + t] - V{};  // broadcast
        if constexpr (kUpper) upper[j] = fused_registers<float, kRegister>(x, of_upper, upper[j]);
        if constexpr (kLower) lower[j] = fused_registers<float, kRegister>(x, of_lower, lower[j]);
      }
    }
  }

  FEDEDGE_HD void store(float* to, uint8_t* where, int64_t stride, int64_t count) const {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      const V &a = upper[2 * j], &b = upper[2 * j + 1], &c = lower[2 * j], &d = lower[2 * j + 1];
      const V most = pooled(pooled(a, b), pooled(c, d));
      put(V{} > most ? V{} : most, to + j * stride, count);
      if (where == nullptr) continue;
      put(__builtin_convertvector(place(a, b, c, d), Bytes), where + j * stride, count);
    }
  }

 private:
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

  FEDEDGE_HD static V load(const float* from) { return *reinterpret_cast<const Loose*>(from); }

  // Stores the first `count` lanes, at most all of them.
  template <class Values, typename T>
  FEDEDGE_HD static void put(const Values& values, T* to, int64_t count) {
    if (count >= kLanes) {
      std::memcpy(to, &values, sizeof(values));
    } else {
      std::memcpy(to, &values, count * sizeof(T));
    }
  }
};

template <int kRegister, int kColumns>
FEDEDGE_APART void convolve_tile(const Convolution& layer, const float* image, const float* weight,
                                 const float* bias, float* out, uint8_t* where, int64_t count) {
  const int64_t taps = layer.kernel_columns * layer.channels;
  const int64_t step = taps * (kRegister / 4);
  Tile<kRegister, kColumns> tile(bias);
  tile.template add<true, false>(image, weight, taps, layer.channels);
  for (int64_t i = 1; i < layer.kernel_rows; ++i) {
    tile.template add<true, true>(image + i * layer.row, weight + i * step, taps, layer.channels);
  }
  const int64_t last = layer.kernel_rows;
  tile.template add<false, true>(image + last * layer.row, weight + last * step, taps,
                                 layer.channels);
  tile.store(out, where, layer.outputs, count);
}

// Calls convolve_tile for 1 to kMost columns.
template <int kRegister, int kMost, class... Arguments>
FEDEDGE_HD void convolve_columns(int64_t columns, const Arguments&... arguments) {
  if constexpr (kMost > 1) {
    if (columns < kMost) return convolve_columns<kRegister, kMost - 1>(columns, arguments...);
  }
  convolve_tile<kRegister, kMost>(arguments...);
}

template <int kRegister>
FEDEDGE_HD void convolve(const Convolution& layer, const float* image, float* out, uint8_t* where) {
  constexpr int64_t kLanes = kRegister / 4;
  constexpr int kMost = kAtOnce<kRegister>;
  const int64_t group = layer.kernel_rows * layer.kernel_columns * layer.channels * kLanes;
  // Tiles of about equal width: the few sums of a narrow tile would wait for each other.
  const int64_t tiles = (layer.columns + kMost - 1) / kMost;
  for (int64_t first = 0; first < layer.outputs; first += kLanes) {
    const float* const weight = layer.weight + first / kLanes * group;
    for (int64_t row = 0; row < layer.rows; ++row) {
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t begin = i * layer.columns / tiles;
        const int64_t end = (i + 1) * layer.columns / tiles;
        const int64_t to = (row * layer.columns + begin) * layer.outputs + first;
        convolve_columns<kRegister, kMost>(
            end - begin, layer, image + 2 * (row * layer.row + begin * layer.channels), weight,
            layer.bias + first, out + to, where == nullptr ? nullptr : where + to,
            layer.outputs - first);
      }
    }
  }
}

}  // namespace fededge::cpu
