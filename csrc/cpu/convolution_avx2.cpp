#if defined(__x86_64__)

// Before the change of target: what these define must run on every processor.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#define FEDEDGE_AVX2
#include "cpu/convolution_backward_loops.h"
#include "cpu/convolution_loops.h"

namespace fededge::cpu {

void convolve_avx2(const Convolution& layer, const float* image, float* out, uint8_t* where) {
  convolve<32>(layer, image, out, where);
}

void add_to_weight_avx2(const Patches& p, Slopes slopes, const float* image, float* weight) {
  add_to_weight<32>(p, slopes, image, weight);
}

void add_to_image_avx2(const Patches& p, Slopes slopes, const float* weight, float* image) {
  add_to_image<32>(p, slopes, weight, image);
}

}  // namespace fededge::cpu

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
