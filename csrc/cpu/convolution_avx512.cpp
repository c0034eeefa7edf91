#if defined(__x86_64__)

// Before the change of target: what these define must run on every processor.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC target("avx512f")
#endif

#include "cpu/convolution_loops.h"

namespace fededge::cpu {

void convolve_avx512(const Convolution& layer, const float* image, float* out) {
  convolve<64>(layer, image, out);
}

}  // namespace fededge::cpu

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
