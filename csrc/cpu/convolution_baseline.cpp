#include "cpu/convolution_backward_loops.h"
#include "cpu/convolution_loops.h"

namespace fededge::cpu {

void convolve_baseline(const Convolution& layer, const float* image, float* out, uint8_t* where) {
  convolve<16>(layer, image, out, where);
}

void add_to_weight_baseline(const Patches& p, Slopes slopes, const float* image, float* weight) {
  add_to_weight<16>(p, slopes, image, weight);
}

void add_to_image_baseline(const Patches& p, Slopes slopes, const float* weight, float* image) {
  add_to_image<16>(p, slopes, weight, image);
}

}  // namespace fededge::cpu
