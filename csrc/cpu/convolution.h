// A convolution, its rectifier and 2x2 max pooling in one pass: the map between them never exists.
#pragma once

#include <cstdint>

namespace fededge::cpu {

// What the loops know of a layer. The output channels are in groups, a register each.
struct Convolution {
  int64_t channels;
  int64_t outputs;         // channels of the output
  int64_t kernel_rows;
  int64_t kernel_columns;
  int64_t row;             // numbers in a row of an image
  int64_t rows;            // of the pooled output
  int64_t columns;
  const float* weight;     // [group][kernel row][kernel column][channel][lane]
  const float* bias;       // [group][lane]
};

// In the place of the largest of four where the rectifier lets none through.
inline constexpr int kNone = 4;

// One image, [row][column][channel]; the borders that a padding adds are part of it. `where`, unless
// it is null, gets which of the four numbers that were pooled was the largest, row by row, or kNone.
void convolve_baseline(const Convolution& layer, const float* image, float* out, uint8_t* where);
void convolve_avx2(const Convolution& layer, const float* image, float* out, uint8_t* where);
void convolve_avx512(const Convolution& layer, const float* image, float* out, uint8_t* where);

// The gradient by one number of the convolution's map, and where in an image the patch begins that
// the number was made of.
struct Slope {
  int64_t at;
  float value;
};

// Those of one output channel in one image that are not zero.
struct Slopes {
  const Slope* data;
  int64_t count;
};

// The patches of a layer: in each of their rows `run` numbers lie side by side. A channel's weights
// and their gradient lie likewise, with a register of the widest kind begun at every row.
struct Patches {
  int64_t rows;
  int64_t run;
  int64_t row;     // numbers in a row of an image
  int64_t stride;  // and in one of the weights
};

inline constexpr int64_t kWidest = 16;

// Adds what slopes give the gradient of a channel's weights. Here and below, kWidest numbers more,
// which may be anything, must come after an image.
void add_to_weight_baseline(const Patches& p, Slopes slopes, const float* image, float* weight);
void add_to_weight_avx2(const Patches& p, Slopes slopes, const float* image, float* weight);
void add_to_weight_avx512(const Patches& p, Slopes slopes, const float* image, float* weight);

// Adds what slopes give the gradient of an image.
void add_to_image_baseline(const Patches& p, Slopes slopes, const float* weight, float* image);
void add_to_image_avx2(const Patches& p, Slopes slopes, const float* weight, float* image);
void add_to_image_avx512(const Patches& p, Slopes slopes, const float* weight, float* image);

}  // namespace fededge::cpu
