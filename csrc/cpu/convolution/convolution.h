// A convolution, 2x2 max pooling and ReLU in one pass, without the intermediate feature map.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/numbers/host_device.h"

namespace fededge::cpu {

// A layer as the loops see it. Output channels are in groups of one register each.
struct Convolution {
  int64_t channels;
  int64_t outputs;  // channels of the output
  int64_t kernel_rows;
  int64_t kernel_columns;
  int64_t row;   // floats per image row
  int64_t rows;  // of the pooled output
  int64_t columns;
  const float* weight;  // [group][kernel row][kernel column][channel][lane]
  const float* bias;    // [group][lane]
};

// The position of the maximum if the ReLU's output is 0.
inline constexpr int kNone = 4;

// Convolves one image, [row][column][channel], including its padding. `where`, unless it is null,
// receives which of the four pooled numbers is the maximum, counted row by row, or kNone.
void convolve_baseline(const Convolution& layer, const float* image, float* out, uint8_t* where);
void convolve_avx2(const Convolution& layer, const float* image, float* out, uint8_t* where);
void convolve_avx512(const Convolution& layer, const float* image, float* out, uint8_t* where);

// True unless the number is 0 of either sign. Integer arithmetic takes fewer instructions.
FEDEDGE_HD bool nonzero(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits << 1 != 0;
}

// The nonzero slopes of one output channel in one image: the gradients with respect to numbers of
// the feature map, and the offsets of their patches in the image.
struct Slopes {
  const int32_t* at;
  const float* value;
  int64_t count;
};

// The patches of a layer. Each of a patch's rows is `run` contiguous floats. The weights of an
// output channel and their gradient have the same rows, each padded to the widest register.
struct Patches {
  int64_t rows;
  int64_t run;
  int64_t row;     // floats per image row
  int64_t stride;  // floats per row of the weights
};

inline constexpr int64_t kWidest = 16;

// Adds the contribution of the slopes to the gradient of a channel's weights. Here and below,
// kWidest more floats of any value must be readable after the image.
void add_to_weight_baseline(const Patches& p, Slopes slopes, const float* image, float* weight);
void add_to_weight_avx2(const Patches& p, Slopes slopes, const float* image, float* weight);
void add_to_weight_avx512(const Patches& p, Slopes slopes, const float* image, float* weight);

// The slopes of all output channels in one image, [row][column][output] of the pooled output. A
// value of 0 means that there is none.
struct Cells {
  int64_t rows;
  int64_t columns;
  int64_t outputs;
  int64_t channels;  // of the image
  const uint8_t* where;
  const float* value;
};

// A slope and the weights of its output channel.
struct Tap {
  const float* weight;
  float value;
};

// Adds the contribution of the slopes to the gradient of an image. `weight` has the rows of all
// output channels, `scratch` has 4 * outputs elements.
void add_to_image_baseline(const Patches& p, const Cells& cells, const float* weight, Tap* scratch,
                           float* image);
void add_to_image_avx2(const Patches& p, const Cells& cells, const float* weight, Tap* scratch,
                       float* image);
void add_to_image_avx512(const Patches& p, const Cells& cells, const float* weight, Tap* scratch,
                         float* image);

}  // namespace fededge::cpu
