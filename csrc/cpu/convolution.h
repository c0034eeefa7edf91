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

// One image, [row][column][channel]; the borders that a padding adds are part of it.
void convolve_baseline(const Convolution& layer, const float* image, float* out);
void convolve_avx2(const Convolution& layer, const float* image, float* out);
void convolve_avx512(const Convolution& layer, const float* image, float* out);

}  // namespace fededge::cpu
