// From tensors to the loops of a convolution: checks, layouts, threads.
#include "cpu/convolution.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "cpu/simd.h"
#include "ops/convolution.h"

namespace fededge::cpu {
namespace {

using convolution_op::kOp;

// Multiplications per thread below which starting another one costs more than it saves.
constexpr int64_t kTapGrain = int64_t{1} << 21;

struct Level {
  decltype(&convolve_baseline) run;
  int64_t lanes;
};

Level level() {
#if defined(__x86_64__)
  if (simd_level() == Simd::kAvx512) return {convolve_avx512, 16};
  if (simd_level() == Simd::kAvx2) return {convolve_avx2, 8};
#endif
  return {convolve_baseline, 4};
}

// Zeros that begin where a line of the cache does: a register that lies across two is slow to load.
at::Tensor zeros(int64_t count) {
  at::Tensor out = at::detail::empty_cpu({count}, at::kFloat);
  std::fill_n(out.mutable_data_ptr<float>(), count, 0.0f);
  return out;
}

int64_t whole(int64_t outputs, int64_t lanes) { return (outputs + lanes - 1) / lanes * lanes; }

// The weights in the order in which the loops read them, a register of output channels at a time.
at::Tensor packed(const at::Tensor& weight, int64_t lanes) {
  const int64_t taps = weight.size(1) * weight.size(2) * weight.size(3);
  at::Tensor out = zeros(whole(weight.size(0), lanes) * taps);
  const float* const data = weight.const_data_ptr<float>();
  for (int64_t o = 0; o < weight.size(0); ++o) {
    float* to = out.mutable_data_ptr<float>() + o / lanes * lanes * taps + o % lanes;
    for (int64_t y = 0; y < weight.size(2); ++y) {
      for (int64_t x = 0; x < weight.size(3); ++x) {
        const float* from = data + o * weight.stride(0) + y * weight.stride(2) + x * weight.stride(3);
        for (int64_t c = 0; c < weight.size(1); ++c, to += lanes) *to = from[c * weight.stride(1)];
      }
    }
  }
  return out;
}

at::Tensor packed(const std::optional<at::Tensor>& bias, int64_t outputs, int64_t lanes) {
  at::Tensor out = zeros(whole(outputs, lanes));
  if (!bias.has_value()) return out;
  const float* const from = bias->const_data_ptr<float>();
  float* const to = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < outputs; ++i) to[i] = from[i * bias->stride(0)];
  return out;
}

// Images whose channels lie side by side, with a border of zeros: as they are where they are so
// already, else copied one at a time.
class Images {
 public:
  Images(const at::Tensor& x, int64_t padding, int64_t row)
      : x_(x), padding_(padding), row_(row) {
    const int64_t channels = x.size(1), columns = x.size(3);
    whole_rows_ = (channels == 1 || x.stride(1) == 1) && x.stride(3) == channels;
    as_they_are_ = padding == 0 && whole_rows_ && x.stride(2) == columns * channels;
    if (!as_they_are_) copy_.resize((x.size(2) + 2 * padding) * row_);
  }

  const float* image(int64_t i) {
    const float* const from = x_.const_data_ptr<float>() + i * x_.stride(0);
    if (as_they_are_) return from;
    for (int64_t y = 0; y < x_.size(2); ++y) {
      float* const to = copy_.data() + (y + padding_) * row_ + padding_ * x_.size(1);
      copy_row(from + y * x_.stride(2), to);
    }
    return copy_.data();
  }

 private:
  void copy_row(const float* from, float* to) const {
    const int64_t channels = x_.size(1), columns = x_.size(3);
    if (whole_rows_) {
      std::copy_n(from, columns * channels, to);
      return;
    }
    for (int64_t x = 0; x < columns; ++x) {
      for (int64_t c = 0; c < channels; ++c) *to++ = from[x * x_.stride(3) + c * x_.stride(1)];
    }
  }

  const at::Tensor& x_;
  int64_t padding_;
  int64_t row_;  // numbers in a row with its border
  bool whole_rows_;
  bool as_they_are_;
  std::vector<float> copy_;
};

at::Tensor pooled_convolution(const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, int64_t padding) {
  convolution_op::check(x, weight, bias, padding);
  const auto sizes = convolution_op::sizes(x.sizes(), weight.sizes(), padding);
  at::Tensor out = at::detail::empty_cpu(sizes, at::kFloat, false, at::MemoryFormat::ChannelsLast);
  const Level best = level();
  const at::Tensor weights = packed(weight, best.lanes);
  const at::Tensor biases = packed(bias, sizes[1], best.lanes);
  const int64_t size = sizes[1] * sizes[2] * sizes[3];
  const Convolution layer{weight.size(1),
                          sizes[1],
                          weight.size(2),
                          weight.size(3),
                          (x.size(3) + 2 * padding) * x.size(1),
                          sizes[2],
                          sizes[3],
                          weights.const_data_ptr<float>(),
                          biases.const_data_ptr<float>()};
  float* const to = out.mutable_data_ptr<float>();
  const int64_t taps = 4 * size * weight.size(1) * weight.size(2) * weight.size(3);
  at::parallel_for(0, sizes[0], std::max<int64_t>(1, kTapGrain / taps),
                   [&](int64_t begin, int64_t end) {
                     Images images(x, padding, layer.row);
                     for (int64_t i = begin; i < end; ++i) {
                       best.run(layer, images.image(i), to + i * size);
                     }
                   });
  return out;
}

TORCH_LIBRARY_IMPL(fededge, CPU, m) {
  m.impl("pooled_convolution", TORCH_FN(pooled_convolution));
}

}  // namespace
}  // namespace fededge::cpu
