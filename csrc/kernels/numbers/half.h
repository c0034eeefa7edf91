// The 16-bit float as bits, so that kernels need neither torch's nor CUDA's headers.
//
// Branch-free integer arithmetic: loops are vectorised on every processor and give the same bits,
// whether or not subnormal numbers are flushed to zero.
#pragma once

#include "kernels/numbers/host_device.h"
#include "kernels/numbers/select.h"

namespace fededge {

// IEEE binary16: 1 bit sign, 5 bits exponent (bias 15), 10 bits fraction.
struct Half {
  uint16_t bits;

  FEDEDGE_HD operator float() const {
    constexpr uint32_t kRebias = (127u - 15u) << 23;
    const uint32_t sign = (bits & 0x8000u) << 16;
    const uint32_t magnitude = (bits & 0x7fffu) << 13;
    const uint32_t exponent = magnitude & (0x1fu << 23);
    const uint32_t special = select(exponent == (0x1fu << 23), kRebias, 0u);  // infinity, NaN
    const float fraction = static_cast<float>(static_cast<int32_t>(bits & 0x3ffu));
    const uint32_t subnormal = fededge::bits(fraction * 0x1p-24f);
    return from_bits(sign | select(exponent == 0, subnormal, magnitude + kRebias + special));
  }
};

}  // namespace fededge
