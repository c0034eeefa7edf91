// A choice between two values without a branch.
#pragma once

#include "kernels/bits.h"

namespace fededge {

// take ? a : b, on the bits. Written as a condition, GCC makes masked loads and stores of it, which
// are several times slower than computing both, or no SIMD at all.
FEDEDGE_HD uint32_t select(bool take, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(take);
  return (a & mask) | (b & ~mask);
}

FEDEDGE_HD float select(bool take, float a, float b) {
  return from_bits(select(take, bits(a), bits(b)));
}

}  // namespace fededge
