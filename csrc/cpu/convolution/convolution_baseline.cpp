#include "cpu/convolution/convolution_backward_loops.h"

namespace fededge::cpu {

FEDEDGE_CONVOLUTIONS(baseline, 16)

}  // namespace fededge::cpu
