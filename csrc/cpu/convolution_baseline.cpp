#include "cpu/convolution_loops.h"

namespace fededge::cpu {

void convolve_baseline(const Convolution& layer, const float* image, float* out) {
  convolve<16>(layer, image, out);
}

}  // namespace fededge::cpu
