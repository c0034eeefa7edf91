#if defined(__x86_64__)

// Before the change of target: what these define must run on every processor.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,fma")
#endif

#define FEDEDGE_AVX512
#include "cpu/convolution_backward_loops.h"
#include "cpu/convolution_loops.h"

namespace fededge::cpu {

void convolve_avx512(const Convolution& layer, const float* image, float* out, uint8_t* where) {
  convolve<64>(layer, image, out, where);
}

void add_to_weight_avx512(const Patches& p, Slopes slopes, const float* image, float* weight) {
  add_to_weight<64>(p, slopes, image, weight);
}

void add_to_image_avx512(const Patches& p, Slopes slopes, const float* weight, float* image) {
  add_to_image<64>(p, slopes, weight, image);
}

}  // namespace fededge::cpu

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
