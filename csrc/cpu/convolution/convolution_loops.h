// The loops of a convolution, compiled once per instruction set.
//
// Every output adds its taps in one order: all processors with fused multiply-add give the same
// bits, whatever their registers. Processors without it use torch's convolution.
#pragma once

#include "cpu/convolution/convolution.h"
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

// The maximum of four numbers and its position, as in torch's pooling: the first of equal numbers,
// the last NaN. kNone if the ReLU's output is 0.
template <class V>
struct Best {
  using Places = decltype(V{} > V{});
  V value;
  Places at;

  FEDEDGE_HD Best(V a, V b, V c, V d) {
    const Places right_above = beats(b, a), right_below = beats(d, c);
    const V above = right_above ? b : a, below = right_below ? d : c;
    const Places is_below = beats(below, above);
    value = is_below ? below : above;
    at = is_below ? 2 - right_below : -right_above;  // true is -1
    at = value <= V{} ? Places{} + kNone : at;
  }

  FEDEDGE_HD static Places beats(V x, V best) { return (x > best) | (x != x); }
};

// The low byte of each lane.
template <int kRegister, class Places>
FEDEDGE_HD auto bytes(Places x) {
  typedef uint8_t Bytes __attribute__((vector_size(kRegister / 4)));
#if !defined(__clang__)  // GCC would convert lane by lane
#if defined(FEDEDGE_AVX512)
  if constexpr (kRegister == 64) {
    return (Bytes)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)x);
  }
#endif
#if defined(FEDEDGE_AVX2)
  if constexpr (kRegister == 32) {
    const __m128i low = _mm256_castsi256_si128((__m256i)x);
    const __m128i words = _mm_packs_epi32(low, _mm256_extracti128_si256((__m256i)x, 1));
    const __m128i packed = _mm_packus_epi16(words, words);
    Bytes out;
    std::memcpy(&out, &packed, sizeof(out));
    return out;
  }
#endif
#endif
  return __builtin_convertvector(x, Bytes);
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

  // Adds the taps of one image row, with a row of the kernel for the upper and one for the lower
  // row of the feature map.
  FEDEDGE_HD void add(const float* from, const float* of_upper, const float* of_lower, int64_t taps,
                      int64_t channels) {
    for (int64_t t = 0; t < taps; ++t) {
      const V a = load(of_upper + t * kLanes), b = load(of_lower + t * kLanes);
#pragma GCC unroll 16
      for (int j = 0; j < kWide; ++j) {
        const V x = from[j * channels + t] - V{};  // broadcast
        upper[j] = fused_registers<float, kRegister>(x, a, upper[j]);
        lower[j] = fused_registers<float, kRegister>(x, b, lower[j]);
      }
    }
  }

  // Adds the taps of the first image row to the upper, and those of the last one to the lower row
  // of the feature map. Each alone has too few sums to hide the latency of an addition.
  FEDEDGE_HD void add_ends(const float* first, const float* last, const float* of_upper,
                           const float* of_lower, int64_t taps, int64_t channels) {
    for (int64_t t = 0; t < taps; ++t) {
      const V a = load(of_upper + t * kLanes), b = load(of_lower + t * kLanes);
#pragma GCC unroll 16
      for (int j = 0; j < kWide; ++j) {
        const V x = first[j * channels + t] - V{}, y = last[j * channels + t] - V{};
        upper[j] = fused_registers<float, kRegister>(x, a, upper[j]);
        lower[j] = fused_registers<float, kRegister>(y, b, lower[j]);
      }
    }
  }

  FEDEDGE_HD void store(float* to, uint8_t* where, int64_t stride, int64_t count) const {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      const V &a = upper[2 * j], &b = upper[2 * j + 1], &c = lower[2 * j], &d = lower[2 * j + 1];
      if (where == nullptr) {
        put(rectified(pooled(pooled(a, b), pooled(c, d))), to + j * stride, count);
      } else {
        const Best<V> best(a, b, c, d);
        put(rectified(best.value), to + j * stride, count);
        put(bytes<kRegister>(best.at), where + j * stride, count);
      }
    }
  }

 private:
  // Never -0: whether the maximum of zeros has a sign depends on how it was found.
  FEDEDGE_HD static V rectified(V x) { return x <= V{} ? V{} : x; }

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
  const int64_t end = layer.kernel_rows;
  Tile<kRegister, kColumns> tile(bias);
  tile.add_ends(image, image + end * layer.row, weight, weight + (end - 1) * step, taps,
                layer.channels);
  for (int64_t i = 1; i < end; ++i) {
    tile.add(image + i * layer.row, weight + i * step, weight + (i - 1) * step, taps,
             layer.channels);
  }
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
