// Runs a span's maths over all its elements: threads, and the best instruction set at run time.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "cpu/simd.h"
#include "kernels/accumulate.h"

// Element i touches nothing but index i of its vectors, so iterations never depend on each other.
#if defined(__clang__)
#define FEDEDGE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define FEDEDGE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace fededge::cpu {

// Elements per thread below which starting another one costs more than it saves.
inline constexpr int64_t kGrain = 65536;

// The span is taken by value: a local copy cannot alias what the loop writes.
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
using Runner = void (*)(Span, int64_t, int64_t);

template <class Span>
Runner<Span> runner() {
#if defined(__x86_64__)
  const Simd level = simd_level();
  if (level == Simd::kAvx512) return run_avx512<Span>;
  if (level == Simd::kAvx2) return run_avx2<Span>;
#endif
  return run_baseline<Span>;
}

template <class Span>
void for_each(int64_t n, const Span& span) {
  const Runner<Span> run = runner<Span>();
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) { run(span, begin, end); });
}

// Tensor by tensor, so that the inner loop has one scale and becomes SIMD.
template <typename Acc>
void for_each(int64_t n, const AccumulateInt8<Acc>& span) {
  const Runner<Accumulate<Acc, int8_t>> run = runner<Accumulate<Acc, int8_t>>();
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t tensor = span.tensor_of(begin); begin < end; ++tensor) {
      const int64_t stop = std::min(end, span.ends[tensor]);
      run(span.within(tensor), begin, stop);
      begin = stop;
    }
  });
}

}  // namespace fededge::cpu
