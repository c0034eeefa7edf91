// The two 16-bit floats as bits, so that kernels need neither torch's nor CUDA's headers.
//
// Integer arithmetic without branches: loops over it become SIMD on every processor, with the same
// bits everywhere, whether or not subnormal numbers are flushed to zero.
#pragma once

#include "kernels/host_device.h"
#include "kernels/select.h"

namespace fededge {

// IEEE binary16: 1 bit sign, 5 bits exponent (bias 15), 10 bits fraction.
struct Half {
  uint16_t bits;

  Half() = default;

  FEDEDGE_HD explicit Half(float value) : bits(round(bits_of(value))) {}

  FEDEDGE_HD operator float() const {
    constexpr uint32_t kRebias = (127u - 15u) << 23;
    const uint32_t sign = (bits & 0x8000u) << 16;
    const uint32_t magnitude = (bits & 0x7fffu) << 13;
    const uint32_t exponent = magnitude & (0x1fu << 23);
    const uint32_t special = select(exponent == (0x1fu << 23), kRebias, 0u);  // infinity, NaN
    const float fraction = static_cast<float>(static_cast<int32_t>(bits & 0x3ffu));
    const uint32_t subnormal = bits_of(fraction * 0x1p-24f);
    return float_of(sign | select(exponent == 0, subnormal, magnitude + kRebias + special));
  }

 private:
  // To the nearest, ties to even.
  FEDEDGE_HD static uint16_t round(uint32_t value) {
    const uint32_t magnitude = value & 0x7fffffffu;
    const uint32_t rebiased = magnitude - ((127u - 15u) << 23);
    const uint32_t normal = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
    // Next to 0.5 a float's last bit is 2^-24, which is a subnormal half's: adding rounds to it.
    const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t out = select(magnitude < 0x38800000u, subnormal, normal);
    out = select(magnitude >= 0x477ff000u, 0x7c00u, out);  // 65520 and more: infinity
    out = select(magnitude > 0x7f800000u, 0x7e00u, out);
    return static_cast<uint16_t>(out | ((value >> 16) & 0x8000u));
  }
};

// The upper half of a float.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;

  FEDEDGE_HD explicit BFloat16(float value) : bits(round(bits_of(value))) {}

  FEDEDGE_HD operator float() const { return float_of(static_cast<uint32_t>(bits) << 16); }

 private:
  FEDEDGE_HD static uint16_t round(uint32_t value) {
    const uint32_t nearest = (value + 0x7fffu + ((value >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>(select((value & 0x7fffffffu) > 0x7f800000u, 0x7fc0u, nearest));
  }
};

}  // namespace fededge
