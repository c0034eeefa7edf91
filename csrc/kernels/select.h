// Floats as bits, and a choice between two values without a branch.
#pragma once

#include <cstring>

#include "kernels/host_device.h"

namespace fededge {

FEDEDGE_HD uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

FEDEDGE_HD float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// take ? a : b, on the bits. Written as a condition, GCC makes masked loads and stores of it, which
// are several times slower than computing both, or no SIMD at all.
FEDEDGE_HD uint32_t select(bool take, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(take);
  return (a & mask) | (b & ~mask);
}

FEDEDGE_HD float select(bool take, float a, float b) {
  return float_of(select(take, bits_of(a), bits_of(b)));
}

}  // namespace fededge
