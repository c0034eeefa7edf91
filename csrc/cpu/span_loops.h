// Runs a span over a range of elements, with run-time dispatch by instruction set. No threads, no
// torch.
#pragma once

#include <cstdint>

#include "cpu/simd.h"

// Element i accesses only index i of its vectors: iterations are independent.
#if defined(__clang__)
#define FEDEDGE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define FEDEDGE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace fededge::cpu {

// The span is passed by value, so that stores cannot alias it.
template <class Span>
void run_baseline(Span span, int64_t begin, int64_t end) {
  FEDEDGE_INDEPENDENT
  for (int64_t i = begin; i < end; ++i) span(i);
}

#if defined(__x86_64__)
template <class Span>
__attribute__((target("avx2"))) void run_avx2(Span span, int64_t begin, int64_t end) {
  FEDEDGE_INDEPENDENT
  for (int64_t i = begin; i < end; ++i) span(i);
}

template <class Span>
__attribute__((target("avx512f"))) void run_avx512(Span span, int64_t begin, int64_t end) {
  FEDEDGE_INDEPENDENT
  for (int64_t i = begin; i < end; ++i) span(i);
}
#endif

template <class Span>
void run(const Span& span, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  const Simd level = simd_level();
  if (level == Simd::kAvx512) return run_avx512(span, begin, end);
  if (level == Simd::kAvx2) return run_avx2(span, begin, end);
#endif
  run_baseline(span, begin, end);
}

}  // namespace fededge::cpu
