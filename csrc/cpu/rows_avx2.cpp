#if defined(__x86_64__)

// Before the change of target: what these define must run on every processor.
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

#include "cpu/row_loops.h"

namespace fededge::cpu {

FEDEDGE_ROWS(rows_avx2, 32)

}  // namespace fededge::cpu

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
