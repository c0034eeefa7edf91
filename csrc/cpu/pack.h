// Pack: a SIMD vector of 64 bytes on every processor.
//
// It consists of vector types of GCC and clang in the register size of the instruction set. The
// size of a pack and the order of its reductions never change: all instruction sets with fused
// multiply-add (kernels/numbers/maths.h) give the same bits, and so do all without it.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstring>
#include <utility>

#include "cpu/rows/row_dispatch.h"
#include "kernels/numbers/maths.h"

namespace fededge::cpu {

// One register of T, and the same type for unaligned memory.
template <typename T, int kRegister>
struct Vector {
  typedef T Type __attribute__((vector_size(kRegister)));
  typedef T Loose __attribute__((vector_size(kRegister), aligned(sizeof(T)), may_alias));
};

// Loads a register of doubles from numbers of type T.
template <int kRegister, typename T>
FEDEDGE_HD typename Vector<double, kRegister>::Type widened(const T* from) {
  constexpr int kNarrow = kRegister / int(sizeof(double)) * int(sizeof(T));
  using Narrow = Vector<T, kNarrow>;
  const auto x = *reinterpret_cast<const typename Narrow::Loose*>(from);
#if !defined(__clang__)  // GCC would convert two halves
#if defined(FEDEDGE_AVX512)
  if constexpr (kRegister == 64 && sizeof(T) == 4) return _mm512_maskz_cvtps_pd(0xff, x);
#endif
#if defined(FEDEDGE_AVX2)
  if constexpr (kRegister == 32 && sizeof(T) == 4) return _mm256_cvtps_pd(x);
#endif
#endif
  return __builtin_convertvector(x, typename Vector<double, kRegister>::Type);
}

// a * b + c of registers, rounded like fused() of numbers (kernels/numbers/maths.h).
template <typename T, int kRegister, class V>
FEDEDGE_HD V fused_registers(V a, V b, V c) {
#if !defined(FEDEDGE_FUSES)
  return a * b + c;
#else
  [[maybe_unused]] constexpr bool kSingle = sizeof(T) == sizeof(float);
#if defined(FEDEDGE_AVX512)
  if constexpr (kRegister == 64 && kSingle) return _mm512_fmadd_ps(a, b, c);
  if constexpr (kRegister == 64 && !kSingle) return _mm512_fmadd_pd(a, b, c);
#endif
#if defined(FEDEDGE_AVX2)
  if constexpr (kRegister == 32 && kSingle) return _mm256_fmadd_ps(a, b, c);
  if constexpr (kRegister == 32 && !kSingle) return _mm256_fmadd_pd(a, b, c);
#endif
#if defined(__aarch64__)
  if constexpr (kRegister == 16 && kSingle) return vfmaq_f32(c, a, b);
  if constexpr (kRegister == 16 && !kSingle) return vfmaq_f64(c, a, b);
#endif
  V out;
  for (int i = 0; i < kRegister / int(sizeof(T)); ++i) out[i] = fused(T(a[i]), T(b[i]), T(c[i]));
  return out;
#endif
}

// The registers of a pack.
template <typename T, int kRegister>
struct Pieces {
  using Piece = typename Vector<T, kRegister>::Type;
  static constexpr int kCount = kPackBytes / kRegister;
  static constexpr int kWidth = kPackBytes / int(sizeof(T));
  Piece piece[kCount];

  // The pieces f(0), f(1), … Not a loop, because GCC would keep the pieces in memory.
  template <class F>
  FEDEDGE_HD static Pieces each(F f) {
    return each(f, std::make_integer_sequence<int, kCount>());
  }

 private:
  template <class F, int... kIndex>
  FEDEDGE_HD static Pieces each(F f, std::integer_sequence<int, kIndex...>) {
    return Pieces{{f(kIndex)...}};
  }
};

// The integers of the same size as a Real.
template <typename Real>
struct Integer;

template <>
struct Integer<float> {
  using Signed = int32_t;
  using Unsigned = uint32_t;
};

template <>
struct Integer<double> {
  using Signed = int64_t;
  using Unsigned = uint64_t;
};

template <typename T, int kRegister>
struct Mask : Pieces<typename Integer<T>::Signed, kRegister> {
  using Base = Pieces<typename Integer<T>::Signed, kRegister>;
  FEDEDGE_HD Mask(Base base) : Base(base) {}
};

template <typename T, int kRegister>
struct Bits : Pieces<typename Integer<T>::Unsigned, kRegister> {
  using Base = Pieces<typename Integer<T>::Unsigned, kRegister>;
  FEDEDGE_HD Bits(Base base) : Base(base) {}
};

template <typename T, int kRegister>
struct Pack : Pieces<T, kRegister> {
  using Real = T;
  using Base = Pieces<T, kRegister>;
  using Loose = typename Vector<T, kRegister>::Loose;
  static constexpr int kPerPiece = kRegister / int(sizeof(T));

  Pack() = default;
  FEDEDGE_HD Pack(Base base) : Base(base) {}
  FEDEDGE_HD explicit Pack(T x) : Base(gather([&](int) FEDEDGE_LAMBDA { return x; })) {}

  FEDEDGE_HD static Pack load(const T* from) {
    return Base::each([&](int i) FEDEDGE_LAMBDA -> typename Base::Piece {
      return *reinterpret_cast<const Loose*>(from + i * kPerPiece);
    });
  }

  FEDEDGE_HD void store(T* to) const {
    for (int i = 0; i < Base::kCount; ++i) {
      *reinterpret_cast<Loose*>(to + i * kPerPiece) = this->piece[i];
    }
  }

  // The pack of f(0), f(1), …
  template <class F>
  FEDEDGE_HD static Pack gather(F f) {
    return Base::each([&](int i) FEDEDGE_LAMBDA {
      return gather_piece(f, i * kPerPiece, std::make_integer_sequence<int, kPerPiece>());
    });
  }

  template <class F, int... kOffset>
  FEDEDGE_HD static typename Base::Piece gather_piece(F f, int first,
                                                      std::integer_sequence<int, kOffset...>) {
    return typename Base::Piece{f(first + kOffset)...};
  }
};

#define FEDEDGE_PACK template <typename T, int kRegister>
#define FEDEDGE_OPERATOR(Result, Argument, op)                                                \
  FEDEDGE_PACK FEDEDGE_HD Result<T, kRegister> operator op(const Argument<T, kRegister>& a,   \
                                                           const Argument<T, kRegister>& b) { \
    return Result<T, kRegister>::Base::each(                                                  \
        [&](int i) FEDEDGE_LAMBDA { return a.piece[i] op b.piece[i]; });                      \
  }
// Operators of two packs, and of a pack and a number.
#define FEDEDGE_MIXED(Result, op)                                                         \
  FEDEDGE_OPERATOR(Result, Pack, op)                                                      \
  FEDEDGE_PACK FEDEDGE_HD Result<T, kRegister> operator op(const Pack<T, kRegister>& a,   \
                                                           typename Traits<T>::Real b) {  \
    return a op Pack<T, kRegister>(b);                                                    \
  }                                                                                       \
  FEDEDGE_PACK FEDEDGE_HD Result<T, kRegister> operator op(typename Traits<T>::Real a,    \
                                                           const Pack<T, kRegister>& b) { \
    return Pack<T, kRegister>(a) op b;                                                    \
  }

FEDEDGE_MIXED(Pack, +)
FEDEDGE_MIXED(Pack, -)
FEDEDGE_MIXED(Pack, *)
FEDEDGE_MIXED(Pack, /)
FEDEDGE_MIXED(Mask, <)
FEDEDGE_MIXED(Mask, >)
FEDEDGE_MIXED(Mask, ==)
FEDEDGE_OPERATOR(Mask, Mask, &)
FEDEDGE_OPERATOR(Bits, Bits, +)
FEDEDGE_OPERATOR(Bits, Bits, -)
#undef FEDEDGE_MIXED
#undef FEDEDGE_OPERATOR

FEDEDGE_PACK FEDEDGE_HD Bits<T, kRegister> operator+(const Bits<T, kRegister>& a,
                                                     typename Integer<T>::Unsigned b) {
  return Bits<T, kRegister>::Base::each([&](int i) FEDEDGE_LAMBDA { return a.piece[i] + b; });
}

FEDEDGE_PACK FEDEDGE_HD Bits<T, kRegister> operator-(const Bits<T, kRegister>& a,
                                                     typename Integer<T>::Unsigned b) {
  return Bits<T, kRegister>::Base::each([&](int i) FEDEDGE_LAMBDA { return a.piece[i] - b; });
}

FEDEDGE_PACK FEDEDGE_HD Bits<T, kRegister> operator<<(const Bits<T, kRegister>& a, int by) {
  return Bits<T, kRegister>::Base::each([&](int i) FEDEDGE_LAMBDA { return a.piece[i] << by; });
}

FEDEDGE_PACK FEDEDGE_HD Bits<T, kRegister> operator>>(const Bits<T, kRegister>& a, int by) {
  return Bits<T, kRegister>::Base::each([&](int i) FEDEDGE_LAMBDA { return a.piece[i] >> by; });
}

FEDEDGE_PACK FEDEDGE_HD Bits<T, kRegister> bits(const Pack<T, kRegister>& x) {
  using To = typename Bits<T, kRegister>::Piece;
  return Bits<T, kRegister>::Base::each([&](int i) FEDEDGE_LAMBDA { return (To)x.piece[i]; });
}

FEDEDGE_PACK FEDEDGE_HD Pack<T, kRegister> from_bits(const Bits<T, kRegister>& x) {
  using To = typename Pack<T, kRegister>::Piece;
  return Pack<T, kRegister>::Base::each([&](int i) FEDEDGE_LAMBDA { return (To)x.piece[i]; });
}

FEDEDGE_PACK FEDEDGE_HD Pack<T, kRegister> fused(const Pack<T, kRegister>& a,
                                                 const Pack<T, kRegister>& b,
                                                 const Pack<T, kRegister>& c) {
  return Pack<T, kRegister>::Base::each([&](int i) FEDEDGE_LAMBDA {
    return fused_registers<T, kRegister>(a.piece[i], b.piece[i], c.piece[i]);
  });
}

FEDEDGE_PACK FEDEDGE_HD Pack<T, kRegister> where(const Mask<T, kRegister>& take,
                                                 const Pack<T, kRegister>& a,
                                                 const Pack<T, kRegister>& b) {
  return Pack<T, kRegister>::Base::each(
      [&](int i) FEDEDGE_LAMBDA { return take.piece[i] ? a.piece[i] : b.piece[i]; });
}

// The maximum, like larger() of numbers (kernels/numbers/maths.h). With a mask it would not compile
// to one instruction.
FEDEDGE_PACK FEDEDGE_HD Pack<T, kRegister> larger(const Pack<T, kRegister>& a,
                                                  const Pack<T, kRegister>& b) {
  return Pack<T, kRegister>::Base::each(
      [&](int i) FEDEDGE_LAMBDA { return a.piece[i] > b.piece[i] ? a.piece[i] : b.piece[i]; });
}

FEDEDGE_PACK FEDEDGE_HD bool all(const Mask<T, kRegister>& mask) {
  typename Integer<T>::Signed lane[Pack<T, kRegister>::kWidth];
  std::memcpy(lane, &mask.piece, kPackBytes);
  typename Integer<T>::Signed held = -1;
  for (const auto one : lane) held &= one;
  return held != 0;
}

// The pack x, with f(i) in each of the first `count` lanes whose condition is false.
template <typename T, int kRegister, class F>
FEDEDGE_HD Pack<T, kRegister> mended(const Pack<T, kRegister>& x, const Mask<T, kRegister>& held,
                                     int count, F f) {
  if (all(held)) return x;
  typename Integer<T>::Signed lane[Pack<T, kRegister>::kWidth];
  std::memcpy(lane, &held.piece, kPackBytes);
  T out[Pack<T, kRegister>::kWidth];
  x.store(out);
  for (int i = 0; i < count; ++i) {
    if (lane[i] == 0) out[i] = f(i);
  }
  return Pack<T, kRegister>::load(out);
}

// 0, 1, 2, …
FEDEDGE_PACK FEDEDGE_HD Pack<T, kRegister> ordinals() {
  return Pack<T, kRegister>::gather([](int i) FEDEDGE_LAMBDA { return static_cast<T>(i); });
}

// Reduces a register pairwise, always lane i with lane i + half.
template <typename T, int kRegister, class Join>
FEDEDGE_HD T reduce(typename Vector<T, kRegister>::Type x, Join join) {
  if constexpr (kRegister > 16) {
    typename Vector<T, kRegister / 2>::Type half[2];
    std::memcpy(half, &x, sizeof(x));
    return reduce<T, kRegister / 2>(join(half[0], half[1]), join);
  } else if constexpr (sizeof(T) == 4) {
    return join(join(x[0], x[2]), join(x[1], x[3]));
  } else {
    return join(x[0], x[1]);
  }
}

// Reduces a pack in the same way.
template <typename T, int kRegister, class Join>
FEDEDGE_HD T reduce(const Pack<T, kRegister>& x, Join join) {
  if constexpr (Pack<T, kRegister>::kCount == 1) {
    return reduce<T, kRegister>(x.piece[0], join);
  } else if constexpr (Pack<T, kRegister>::kCount == 2) {
    return reduce<T, kRegister>(join(x.piece[0], x.piece[1]), join);
  } else {
    const auto even = join(x.piece[0], x.piece[2]);
    return reduce<T, kRegister>(join(even, join(x.piece[1], x.piece[3])), join);
  }
}
#undef FEDEDGE_PACK

}  // namespace fededge::cpu
