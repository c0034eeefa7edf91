// Exponential and logarithm without branches or tables: the same bits on every processor that
// multiplies and adds at once, and others, always the same, on those that do not.
//
// They are templates over a number: a float, a double, or a pack of them (cpu/pack.h), which brings
// its own `Real`, `bits`, `from_bits` and `where`.
#pragma once

#include "kernels/bits.h"

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

// a * b + c, rounded once where that is one instruction; to make one of several would take long. A
// file that chooses its instruction set says which (FEDEDGE_AVX2, FEDEDGE_AVX512): GCC has read all
// of it, and decided what is #if, before it looks at that choice.
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

// Whether a condition holds; of packs, for each of their numbers.
FEDEDGE_HD bool all(bool holds) { return holds; }

// The larger of two; b where one of them is not a number.
template <class Number>
FEDEDGE_HD Number larger(Number a, Number b) {
  return where(a > b, a, b);
}

// A constant that the compiler takes for any number. Where it knows one of two numbers, GCC makes two
// instructions of the larger one, not one.
template <typename Real>
FEDEDGE_HD Real unknown(Real x) {
#if defined(__x86_64__) && !defined(__CUDACC__)
  asm("" : "+x"(x));
#endif
  return x;
}

// 2^f is, for |f| <= 1/2, the polynomial with the coefficients in kExp: to 1.1e-7 as a float.
template <typename Real>
struct Constants;

template <>
struct Constants<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr Bits kBias = 127;
  // 1.5 * 2^23 and the bias: adding it rounds to an integer, whose biased exponent is in the low bits.
  static constexpr float kRound = 12583039.0f;
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kLn2High = 0.693145751953125f;  // short: its multiples are exact
  static constexpr float kLn2Low = 1.42860682030941723e-6f;
  static constexpr float kLeast = -88.0f;  // from here on 2^n is written as 0
  static constexpr float kSqrtHalf = 0.707106781f;
  static constexpr float kTiny = 1.17549435e-38f;
  static constexpr float kMost = 3.40282347e38f;
  static constexpr int kExpTerms = 6;
  static constexpr int kLogTerms = 5;

  // A function, because device code cannot read a constexpr array by a variable index.
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
    constexpr double kExp[] = {
        1.0,
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

// e^x for x <= 88 (float) or 709 (double), 0 of -inf. Its relative error is that of x being off by an
// ulp, and 2 ulp more: a difference of logits, which is what x is here, is no more exact itself.
template <class Number>
FEDEDGE_HD Number exp(Number given) {
  using Real = typename Traits<Number>::Real;
  using K = Constants<Real>;
  const Number x = larger(Number(unknown(K::kLeast)), given);
  // e^x = 2^n 2^f, with n the integer next to it
  const Number log2e(K::kLog2E);
  const Number shifted = fused(x, log2e, Number(K::kRound));
  const Number f = fused(x, log2e, K::kRound - shifted);
  // Two terms at a time: what waits for itself is half as long.
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
  // x = 2^k m with m from sqrt(1/2) to sqrt(2); `raised` is k and the bias, at the exponent's place.
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
