// Bit casts between floating point numbers and integers.
#pragma once

#include <cstring>

#include "kernels/numbers/host_device.h"

namespace fededge {

FEDEDGE_HD uint32_t bits(float x) {
  uint32_t out;
  std::memcpy(&out, &x, sizeof(out));
  return out;
}

FEDEDGE_HD uint64_t bits(double x) {
  uint64_t out;
  std::memcpy(&out, &x, sizeof(out));
  return out;
}

FEDEDGE_HD float from_bits(uint32_t x) {
  float out;
  std::memcpy(&out, &x, sizeof(out));
  return out;
}

FEDEDGE_HD double from_bits(uint64_t x) {
  double out;
  std::memcpy(&out, &x, sizeof(out));
  return out;
}

}  // namespace fededge
