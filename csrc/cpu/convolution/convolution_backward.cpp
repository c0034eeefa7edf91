// The backward op of the pooled convolution: layouts, threads, partial sums.
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <vector>

#include "cpu/convolution/convolution.h"
#include "cpu/convolution/padded_images.h"
#include "cpu/simd.h"
#include "ops/convolution_checks.h"

namespace fededge::cpu {
namespace {

using at::Tensor;

// Multiplications per thread below which another thread does not pay.
constexpr int64_t kTapGrain = int64_t{1} << 20;

// Images per partial sum, and the most partial sums. Their number depends on the batch alone, and
// they are added in a fixed order: the bits do not depend on the number of threads. Every partial
// sum is as large as the weights and takes time to clear and to add.
constexpr int64_t kImagesPerPart = 16;
constexpr int64_t kMostParts = 16;

struct Level {
  decltype(&add_to_weight_baseline) add_to_weight;
  decltype(&add_to_image_baseline) add_to_image;
};

Level level() {
#if defined(__x86_64__)
  if (simd_level() == Simd::kAvx512) return {add_to_weight_avx512, add_to_image_avx512};
  if (simd_level() == Simd::kAvx2) return {add_to_weight_avx2, add_to_image_avx2};
#endif
  return {add_to_weight_baseline, add_to_image_baseline};
}

// The arguments of the backward pass.
struct Inputs {
  const Tensor& gradient;  // with respect to the output
  const Tensor where;      // [image][row][column][output]
  const Tensor& x;
  const Tensor& weight;
  int64_t padding;

  int64_t outputs() const { return weight.size(0); }
  int64_t channels() const { return weight.size(1); }
  int64_t cells() const { return gradient.size(2) * gradient.size(3); }
  int64_t parts() const { return std::clamp<int64_t>(x.size(0) / kImagesPerPart, 1, kMostParts); }

  Patches patches() const {
    const int64_t run = weight.size(3) * channels();
    return {weight.size(2), run, (x.size(3) + 2 * padding) * channels(),
            (run + kWidest - 1) / kWidest * kWidest};
  }
};

// Calls f(index in the weights, index in rows of patches) for every weight.
template <class F>
void each_weight(const Tensor& weight, const Patches& p, const F& f) {
  for (int64_t o = 0; o < weight.size(0); ++o) {
    for (int64_t y = 0; y < weight.size(2); ++y) {
      for (int64_t x = 0; x < weight.size(3); ++x) {
        const int64_t of_weight =
            o * weight.stride(0) + y * weight.stride(2) + x * weight.stride(3);
        const int64_t of_patch = (o * p.rows + y) * p.stride + x * weight.size(1);
        for (int64_t c = 0; c < weight.size(1); ++c) {
          f(of_weight + c * weight.stride(1), of_patch + c);
        }
      }
    }
  }
}

// The slopes of one image after another, [row][column][output] of the pooled output: the offsets of
// their patches, and their values, 0 where there is none.
class ImageSlopes {
 public:
  ImageSlopes(const Inputs& in, int64_t row)
      : in_(in),
        rows_(in.gradient.size(2)),
        columns_(in.gradient.size(3)),
        outputs_(in.outputs()),
        channels_(static_cast<int32_t>(in.channels())),
        row_(static_cast<int32_t>(row)),
        at_(rows_ * columns_ * outputs_),
        value_(at_.size()),
        sum_(outputs_),
        found_at_(rows_ * columns_),
        found_value_(found_at_.size()) {}

  void read(int64_t image) {
    const at::IntArrayRef strides = in_.gradient.strides();
    const float* const from = in_.gradient.const_data_ptr<float>() + image * strides[0];
    where_ = in_.where.const_data_ptr<uint8_t>() + image * at_.size();
    int64_t to = 0;
    for (int64_t y = 0; y < rows_; ++y) {
      for (int64_t x = 0; x < columns_; ++x, to += outputs_) {
        const float* const gradient = from + y * strides[2] + x * strides[3];
        const int32_t first = static_cast<int32_t>(2 * (y * row_ + x * channels_));
        // A constant stride is vectorised.
        if (strides[1] == 1) {
          read_cell(gradient, 1, first, to);
        } else {
          read_cell(gradient, strides[1], first, to);
        }
      }
    }
  }

  // The slopes of an output channel, in the order of the feature map. Branch-free: a branch would
  // be mispredicted, since about half of the positions have a slope.
  Slopes of_output(int64_t output) {
    const int32_t* at = at_.data() + output;
    const float* value = value_.data() + output;
    int32_t* const found_at = found_at_.data();
    float* const found_value = found_value_.data();
    const int64_t cells = found_at_.size(), step = outputs_;
    int64_t count = 0;
    for (int64_t i = 0; i < cells; ++i, at += step, value += step) {
      const float slope = *value;
      found_at[count] = *at;
      found_value[count] = slope;
      count += nonzero(slope);
    }
    return {found_at, found_value, count};
  }

  Cells cells() const { return {rows_, columns_, outputs_, channels_, where_, value_.data()}; }

  // Adds the slopes of each output channel. A row is summed first, in single precision.
  void add_to(double* sums) {
    const float* from = value_.data();
    float* const sum = sum_.data();
    const int64_t outputs = outputs_;
    for (int64_t y = 0; y < rows_; ++y) {
      std::fill_n(sum, outputs, 0.0f);
      for (int64_t x = 0; x < columns_; ++x, from += outputs) {
        for (int64_t o = 0; o < outputs; ++o) sum[o] += from[o];
      }
      for (int64_t o = 0; o < outputs; ++o) sums[o] += sum[o];
    }
  }

 private:
  void read_cell(const float* gradient, int64_t stride, int32_t first, int64_t to) {
    const int64_t outputs = outputs_;
    const int32_t channels = channels_, row = row_;
    const uint8_t* const where = where_ + to;
    int32_t* const at = at_.data() + to;
    float* const value = value_.data() + to;
    for (int64_t o = 0; o < outputs; ++o) {
      const int32_t place = where[o];  // any byte is allowed
      const float slope = gradient[o * stride];
      at[o] = first + (place & 1 ? channels : 0) + (place & 2 ? row : 0);
      value[o] = place < kNone ? slope : 0.0f;
    }
  }

  const Inputs& in_;
  int64_t rows_;
  int64_t columns_;
  int64_t outputs_;
  int32_t channels_;
  int32_t row_;
  std::vector<int32_t> at_;
  std::vector<float> value_;
  std::vector<float> sum_;
  std::vector<int32_t> found_at_;
  std::vector<float> found_value_;
  const uint8_t* where_ = nullptr;
};

// The gradient of one image after another. The buffer includes the padding, and end() crops it.
class ImageGradient {
 public:
  ImageGradient(const Inputs& in, int64_t row, float* to)
      : in_(in),
        row_(row),
        to_(to),
        sums_(to == nullptr ? 0 : (in.x.size(2) + 2 * in.padding) * row + kWidest) {}

  float* begin() {
    std::fill_n(sums_.data(), sums_.size(), 0.0f);
    return sums_.data();
  }

  void end(int64_t image) const {
    const int64_t rows = in_.x.size(2), width = in_.x.size(3) * in_.channels();
    for (int64_t y = 0; y < rows; ++y) {
      const float* const from =
          sums_.data() + (y + in_.padding) * row_ + in_.padding * in_.channels();
      std::copy_n(from, width, to_ + (image * rows + y) * width);
    }
  }

 private:
  const Inputs& in_;
  int64_t row_;
  float* to_;
  AlignedFloats sums_;
};

// The sums of the gradients; null for those that are not needed.
struct Sums {
  float* x = nullptr;       // [image][row][column][channel]
  float* weight = nullptr;  // [part][output][row of a patch]
  double* bias = nullptr;   // [part][output]
};

void add_images(const Inputs& in, const float* weight, int64_t part, const Sums& sums) {
  const Patches p = in.patches();
  const Level best = level();
  const int64_t images = in.x.size(0), of_channel = p.rows * p.stride;
  PaddedImages read(in.x, in.padding, p.row, kWidest);
  ImageGradient written(in, p.row, sums.x);
  ImageSlopes slopes(in, p.row);
  std::vector<Tap> scratch(sums.x == nullptr ? 0 : 4 * in.outputs());
  for (int64_t i = part * images / in.parts(); i < (part + 1) * images / in.parts(); ++i) {
    slopes.read(i);
    if (sums.bias) slopes.add_to(sums.bias + part * in.outputs());
    if (sums.weight) {
      const float* const image = read.image(i);
      float* to = sums.weight + part * in.outputs() * of_channel;
      for (int64_t o = 0; o < in.outputs(); ++o, to += of_channel) {
        best.add_to_weight(p, slopes.of_output(o), image, to);
      }
    }
    if (sums.x) {
      best.add_to_image(p, slopes.cells(), weight, scratch.data(), written.begin());
      written.end(i);
    }
  }
}

// Adds all parts to the first one.
template <typename T>
void join(T* parts, int64_t count, int64_t size) {
  for (int64_t part = 1; part < count; ++part) {
    for (int64_t i = 0; i < size; ++i) parts[i] += parts[part * size + i];
  }
}

void add_all(const Inputs& in, const Sums& sums) {
  const Patches p = in.patches();
  const Tensor weight = zeros(in.outputs() * p.rows * p.stride);
  float* const rows = weight.mutable_data_ptr<float>();
  const float* const from = in.weight.const_data_ptr<float>();
  each_weight(in.weight, p, [&](int64_t w, int64_t i) { rows[i] = from[w]; });
  const int64_t taps = in.gradient.numel() / in.parts() * p.rows * p.run;
  at::parallel_for(0, in.parts(), kTapGrain / (taps + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) add_images(in, rows, part, sums);
  });
}

// The gradients with respect to x, weight and bias, as far as they are needed.
std::tuple<Tensor, Tensor, Tensor> pooled_convolution_backward(const Tensor& gradient,
                                                               const Tensor& where, const Tensor& x,
                                                               const Tensor& weight,
                                                               int64_t padding,
                                                               std::array<bool, 3> needed) {
  convolution_op::check_backward(gradient, where, x, weight, padding);
  const Inputs in{gradient, where.contiguous(at::MemoryFormat::ChannelsLast), x, weight, padding};
  const Patches p = in.patches();
  TORCH_CHECK_VALUE((x.size(2) + 2 * padding) * p.row <= std::numeric_limits<int32_t>::max(),
                    convolution_op::kOp, ": an image with its padding has more than 2**31 numbers");
  const int64_t size = in.outputs() * p.rows * p.stride;
  const Tensor weights = needed[1] ? zeros(in.parts() * size) : Tensor();
  std::vector<double> biases(needed[2] ? in.parts() * in.outputs() : 0);
  Tensor of_x, of_weight, of_bias;
  if (needed[0]) {
    of_x = at::detail::empty_cpu(x.sizes(), at::kFloat, false, at::MemoryFormat::ChannelsLast);
  }
  const Sums sums{needed[0] ? of_x.mutable_data_ptr<float>() : nullptr,
                  needed[1] ? weights.mutable_data_ptr<float>() : nullptr,
                  needed[2] ? biases.data() : nullptr};
  add_all(in, sums);
  if (needed[1]) {
    join(sums.weight, in.parts(), size);
    of_weight = at::detail::empty_cpu(weight.sizes(), at::kFloat);
    float* const to = of_weight.mutable_data_ptr<float>();
    each_weight(of_weight, p, [&](int64_t w, int64_t i) { to[w] = sums.weight[i]; });
  }
  if (needed[2]) {
    join(sums.bias, in.parts(), in.outputs());
    of_bias = at::detail::empty_cpu({in.outputs()}, at::kFloat);
    std::copy_n(sums.bias, in.outputs(), of_bias.mutable_data_ptr<float>());
  }
  return {of_x, of_weight, of_bias};
}

TORCH_LIBRARY_IMPL(fededge, CPU, m) {
  m.impl("pooled_convolution_backward", TORCH_FN(pooled_convolution_backward));
}

}  // namespace
}  // namespace fededge::cpu
