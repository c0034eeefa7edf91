// Exponential and logarithm without branches or tables. All processors with fused multiply-add give
// the same bits, and so do all without it.
//
// The template argument Number is float, double or a pack (cpu/pack.h), which defines its own
// `Real`, `bits`, `from_bits` and `where`.
#pragma once

#include "kernels/numbers/bits.h"

namespace fededge {

template <class Number>
struct Traits {
  using Real = typename Number::Real;
};

template <>
struct Traits<float> {
  using Real = float;
};

template <>
struct Traits<double> {
  using Real = double;
};

FEDEDGE_HD float where(bool take, float a, float b) { return take ? a : b; }
FEDEDGE_HD double where(bool take, double a, double b) { return take ? a : b; }

// FEDEDGE_FUSES: fused multiply-add is one instruction. Emulating it would be slow. A file that
// selects its instruction set defines FEDEDGE_AVX2 or FEDEDGE_AVX512, because the preprocessor does
// not see #pragma GCC target.
#if defined(FEDEDGE_AVX2) || defined(FEDEDGE_AVX512) || defined(__aarch64__)
#define FEDEDGE_FUSES
#endif

FEDEDGE_HD float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(FEDEDGE_FUSES)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

FEDEDGE_HD double fused(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#elif defined(FEDEDGE_FUSES)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// True if a condition holds; for packs, if it holds in all lanes.
FEDEDGE_HD bool all(bool holds) { return holds; }

// The maximum of two numbers; b if one of them is NaN.
template <class Number>
FEDEDGE_HD Number larger(Number a, Number b) {
  return where(a > b, a, b);
}

// Hides a constant from the compiler. GCC compiles larger() with a known constant to two
// instructions instead of one.
template <typename Real>
FEDEDGE_HD Real unknown(Real x) {
#if defined(__x86_64__) && !defined(__CUDACC__)
  asm("" : "+x"(x));
#endif
  return x;
}

// For |f| <= 1/2, 2^f is a polynomial with the coefficients kExp; the error in float is 1.1e-7.
template <typename Real>
struct Constants;

template <>
struct Constants<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr Bits kBias = 127;
  // 1.5 * 2^23 plus the bias: adding it rounds to an integer and leaves a biased exponent in the
  // low bits.
  static constexpr float kRound = 12583039.0f;
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kLn2High = 0.693145751953125f;  // short: its multiples are exact
  static constexpr float kLn2Low = 1.42860682030941723e-6f;
  static constexpr float kLeast = -88.0f;  // below this e^x is 0
  static constexpr float kSqrtHalf = 0.707106781f;
  static constexpr float kTiny = 1.17549435e-38f;
  static constexpr float kMost = 3.40282347e38f;
  static constexpr int kExpTerms = 6;
  static constexpr int kLogTerms = 5;

  // A function, because device code cannot index a constexpr array member at run time.
  FEDEDGE_HD static constexpr float infinity() { return __builtin_huge_valf(); }
  FEDEDGE_HD static constexpr float power(int i) {
    constexpr float kExp[] = {1.0f,
                              0.69314697699038f,
                              0.24022241271343f,
                              0.055507343880275f,
                              0.0096715659523107f,
                              0.0013264659085522f};
    return kExp[i];
  }
};

template <>
struct Constants<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr Bits kBias = 1023;
  static constexpr double kRound = 6755399441056767.0;  // 1.5 * 2^52 and the bias
  static constexpr double kLog2E = 1.44269504088896340736;
  static constexpr double kLn2High = 0.693147180369123816490;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  static constexpr double kLeast = -709.0;
  static constexpr double kSqrtHalf = 0.70710678118654752440;
  static constexpr double kTiny = 2.2250738585072014e-308;
  static constexpr double kMost = 1.7976931348623157e308;
  static constexpr int kExpTerms = 12;
  static constexpr int kLogTerms = 11;

  FEDEDGE_HD static constexpr double infinity() { return __builtin_huge_val(); }
  FEDEDGE_HD static constexpr double power(int i) {
    constexpr double kExp[] = {1.0,
                               0.69314718055994530942,
                               0.24022650695910098328,
                               0.055504108664821594396,
                               0.009618129107606819316,
                               0.0013333558146416898419,
                               0.00015403530441852282742,
                               0.000015252733829898073766,
                               1.3215442517101619104e-6,
                               1.01780624080967359e-7,
                               7.0726001079108916422e-9,
                               4.4549681451096384816e-10};
    return kExp[i];
  }
};

// e^x for x <= 88 (float) or 709 (double), and 0 for -inf. The relative error is that of one ulp in
// x, plus 2 ulp. Here x is a difference of logits, which is no more accurate itself.
template <class Number>
FEDEDGE_HD Number exp(Number given) {
  using Real = typename Traits<Number>::Real;
  using K = Constants<Real>;
  const Number x = larger(Number(unknown(K::kLeast)), given);
  // e^x = 2^n 2^f, where n is the nearest integer
  const Number log2e(K::kLog2E);
  const Number shifted = fused(x, log2e, Number(K::kRound));
  const Number f = fused(x, log2e, K::kRound - shifted);
  // Two terms per step: the dependency chain is half as long.
  const Number square = f * f;
  const auto two = [&](int i) FEDEDGE_LAMBDA {
    return fused(f, Number(K::power(i + 1)), Number(K::power(i)));
  };
  Number sum = two(K::kExpTerms - 2);
#pragma GCC unroll 16
  for (int i = K::kExpTerms - 4; i >= 0; i -= 2) sum = fused(sum, square, two(i));
  return sum * from_bits(bits(shifted) << K::kMantissa);
}

// The natural logarithm of a positive normal number, to 1.5 ulp; NaN of NaN and infinity.
template <class Number>
FEDEDGE_HD Number log(Number x) {
  using Real = typename Traits<Number>::Real;
  using K = Constants<Real>;
  // x = 2^k m with sqrt(1/2) <= m < sqrt(2). `raised` has k plus the bias in the exponent bits.
  const auto raised = bits(x) - (bits(Real(K::kSqrtHalf)) - (K::kBias << K::kMantissa));
  const auto k = (raised >> K::kMantissa) - K::kBias;
  const Number m = from_bits(bits(x) - (k << K::kMantissa));
  const Number exponent = from_bits(k + bits(Real(K::kRound))) - K::kRound;
  // log(m) = 2 (s + s³/3 + s⁵/5 + …)
  const Number s = (m - Real(1)) / (m + Real(1));
  const Number square = s * s;
  Number series = square * (Real(1) / (2 * K::kLogTerms - 1)) + Real(1) / (2 * K::kLogTerms - 3);
#pragma GCC unroll 16
  for (int i = K::kLogTerms - 3; i >= 1; --i) series = series * square + Real(1) / (2 * i + 1);
  const Number small = exponent * K::kLn2Low + (series * square) * (s + s);
  return exponent * K::kLn2High + (small + (s + s)) + (x - x);
}

}  // namespace fededge
