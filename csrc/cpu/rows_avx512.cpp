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
#include "cpu/row_loops.h"

namespace fededge::cpu {

FEDEDGE_ROWS(rows_avx512, 64)

}  // namespace fededge::cpu

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
