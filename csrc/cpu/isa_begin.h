// Prologue of a source file that is compiled for one instruction set.
//
// Define FEDEDGE_AVX2 or FEDEDGE_AVX512, include this header first and cpu/isa_end.h last. All code
// in between may use that instruction set. The headers below come before the change of target,
// because the inline functions in them must run on every processor.
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(FEDEDGE_AVX512)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,fma")
#endif
#elif defined(FEDEDGE_AVX2)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#else
#error "define FEDEDGE_AVX2 or FEDEDGE_AVX512 before this header"
#endif
