#include "cpu/simd.h"

#include <atomic>
#include <stdexcept>

namespace fededge::cpu {
namespace {

std::atomic<Simd>& current() {
  static std::atomic<Simd> level{simd_levels().back()};
  return level;
}

}  // namespace

Simd simd_level() { return current().load(std::memory_order_relaxed); }

std::string simd_name(Simd level) {
  if (level == Simd::kAvx512) return "avx512";
  if (level == Simd::kAvx2) return "avx2";
#if defined(__x86_64__)
  return "sse2";
#elif defined(__aarch64__)
  return "neon";
#else
  return "baseline";
#endif
}

std::vector<Simd> simd_levels() {
  std::vector<Simd> levels{Simd::kBaseline};
#if defined(__x86_64__)
  __builtin_cpu_init();
  // The AVX2 loops use FMA. Almost every processor has both.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2) levels.push_back(Simd::kAvx2);
  if (avx2 && __builtin_cpu_supports("avx512f")) levels.push_back(Simd::kAvx512);
#endif
  return levels;
}

void limit_simd(const std::string& name) {
  std::string known;
  for (const Simd level : simd_levels()) {
    if (simd_name(level) == name) {
      current().store(level, std::memory_order_relaxed);
      return;
    }
    known += (known.empty() ? "" : ", ") + simd_name(level);
  }
  throw std::invalid_argument("SIMD level '" + name + "' is not one of this processor's: " + known);
}

}  // namespace fededge::cpu
