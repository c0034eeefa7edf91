// The instruction set of the loops, selected at run time.
#pragma once

#include <string>
#include <vector>

namespace fededge::cpu {

enum class Simd { kBaseline, kAvx2, kAvx512 };

// The level in use: the best of this processor, unless limited.
Simd simd_level();

// "sse2", "avx2", "avx512", "neon" or, elsewhere, "baseline".
std::string simd_name(Simd level);

// Every level that this processor can run, lowest first.
std::vector<Simd> simd_levels();

// Selects a level from now on. Tests use it to compare all levels of one machine.
void limit_simd(const std::string& name);

}  // namespace fededge::cpu
