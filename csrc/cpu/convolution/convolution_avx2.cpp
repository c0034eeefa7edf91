#if defined(__x86_64__)
#define FEDEDGE_AVX2
#include "cpu/isa_begin.h"

#include "cpu/convolution/convolution_backward_loops.h"

namespace fededge::cpu {

FEDEDGE_CONVOLUTIONS(avx2, 32)

}  // namespace fededge::cpu

#include "cpu/isa_end.h"
#endif
