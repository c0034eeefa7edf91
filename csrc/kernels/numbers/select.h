// Branch-free selection of one of two values.
#pragma once

#include "kernels/numbers/bits.h"

namespace fededge {

// take ? a : b, by bit operations. GCC compiles the conditional operator to masked loads and
// stores, which are several times slower, or does not vectorise it at all.
FEDEDGE_HD uint32_t select(bool take, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(take);
  return (a & mask) | (b & ~mask);
}

FEDEDGE_HD float select(bool take, float a, float b) {
  return from_bits(select(take, bits(a), bits(b)));
}

}  // namespace fededge
