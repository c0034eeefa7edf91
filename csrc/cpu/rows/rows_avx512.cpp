#if defined(__x86_64__)
#define FEDEDGE_AVX512
#include "cpu/isa_begin.h"

#include "cpu/rows/row_loops.h"

namespace fededge::cpu {

FEDEDGE_ROWS(rows_avx512, 64)

}  // namespace fededge::cpu

#include "cpu/isa_end.h"
#endif
