// Which instruction set the loops use: chosen when the program runs, not when it is built.
#pragma once

#include <string>
#include <vector>

namespace fededge::cpu {

enum class Simd { kBaseline, kAvx2, kAvx512 };

// The level in use: the best that this processor has, unless limited.
Simd simd_level();

// "sse2", "avx2", "avx512", "neon" or, elsewhere, "baseline".
std::string simd_name(Simd level);

// Every level that this processor can run, lowest first.
std::vector<Simd> simd_levels();

// Use this level from now on, so that one machine can test and compare all that it has.
void limit_simd(const std::string& name);

}  // namespace fededge::cpu
