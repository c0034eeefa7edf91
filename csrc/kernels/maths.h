// Exponential and logarithm without branches or tables: the same bits on every processor.
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

// Whether a condition holds; of packs, for each of their numbers.
FEDEDGE_HD bool all(bool holds) { return holds; }

// The larger of two; b where one of them is not a number.
template <class Number>
FEDEDGE_HD Number larger(Number a, Number b) {
  return where(a > b, a, b);
}

// exp(r) = 1 + r + r² q(r) for |r| <= ln(2)/2, with the coefficients of q in kExp.
template <typename Real>
struct Constants;

template <>
struct Constants<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr Bits kBias = 127;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kLn2High = 0.693145751953125f;  // short: its multiples are exact
  static constexpr float kLn2Low = 1.42860682030941723e-6f;
  static constexpr float kLeast = -87.33654f;  // of a lower x, e^x is no normal number
  static constexpr float kSqrtHalf = 0.707106781f;
  static constexpr float kTiny = 1.17549435e-38f;
  static constexpr float kMost = 3.40282347e38f;
  static constexpr int kExpTerms = 5;
  static constexpr int kLogTerms = 5;

  // A function, because device code cannot read a constexpr array by a variable index.
  FEDEDGE_HD static constexpr float infinity() { return __builtin_huge_valf(); }
  FEDEDGE_HD static constexpr float q(int i) {
    constexpr float kExp[] = {0.5f, 0.16666576989698776f, 0.041666554617204574f,
                              0.0083631790527225774f, 0.0013926183587713495f};
    return kExp[i];
  }
};

template <>
struct Constants<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr Bits kBias = 1023;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLog2E = 1.44269504088896340736;
  static constexpr double kLn2High = 0.693147180369123816490;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  static constexpr double kLeast = -708.396418532264106;
  static constexpr double kSqrtHalf = 0.70710678118654752440;
  static constexpr double kTiny = 2.2250738585072014e-308;
  static constexpr double kMost = 1.7976931348623157e308;
  static constexpr int kExpTerms = 10;
  static constexpr int kLogTerms = 11;

  FEDEDGE_HD static constexpr double infinity() { return __builtin_huge_val(); }
  FEDEDGE_HD static constexpr double q(int i) {
    constexpr double kExp[] = {
        0.50000000000000010221,     0.16666666666666667453,   0.041666666666624127873,
        0.0083333333333300618325,   0.0013888888917213716901, 0.00019841269863053616878,
        0.000024801521295954375131, 2.7557268459997064772e-6, 2.7620088445409748161e-7,
        2.5100385495510319078e-8};
    return kExp[i];
  }
};

// e^x for x <= 88 (float) or 709 (double), to 1.5 ulp; 0 of -inf and where e^x is no normal number.
template <class Number>
FEDEDGE_HD Number exp(Number x) {
  using Real = typename Traits<Number>::Real;
  using K = Constants<Real>;
  const Number shifted = x * K::kLog2E + K::kRound;
  const Number n = shifted - K::kRound;
  const Number r = (x - n * K::kLn2High) - n * K::kLn2Low;
  Number q = r * K::q(K::kExpTerms - 1) + K::q(K::kExpTerms - 2);
#pragma GCC unroll 16
  for (int i = K::kExpTerms - 3; i >= 0; --i) q = q * r + K::q(i);
  const Number mantissa = ((q * r) * r + r) + Real(1);
  // The integer n stands in the low bits of `shifted`: moved up, it is the exponent of 2^n.
  const Number power = from_bits((bits(shifted) + K::kBias) << K::kMantissa);
  return where(x < K::kLeast, Number(Real(0)), mantissa * power);
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
