// The forward ops of the pooled convolution: checks, layouts, threads.
#include "cpu/convolution/convolution.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "cpu/convolution/padded_images.h"
#include "cpu/simd.h"
#include "ops/convolution_checks.h"

namespace fededge::cpu {
namespace {

// Multiplications per thread below which another thread does not pay.
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

int64_t whole(int64_t outputs, int64_t lanes) { return (outputs + lanes - 1) / lanes * lanes; }

// The weights in the order in which the loops read them: groups of output channels, one register
// each.
at::Tensor packed(const at::Tensor& weight, int64_t lanes) {
  const int64_t taps = weight.size(1) * weight.size(2) * weight.size(3);
  at::Tensor out = zeros(whole(weight.size(0), lanes) * taps);
  const float* const data = weight.const_data_ptr<float>();
  for (int64_t o = 0; o < weight.size(0); ++o) {
    float* to = out.mutable_data_ptr<float>() + o / lanes * lanes * taps + o % lanes;
    for (int64_t y = 0; y < weight.size(2); ++y) {
      for (int64_t x = 0; x < weight.size(3); ++x) {
        const float* from =
            data + o * weight.stride(0) + y * weight.stride(2) + x * weight.stride(3);
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

using convolution_op::Sizes;

at::Tensor empty(const Sizes& sizes, at::ScalarType type) {
  return at::detail::empty_cpu(sizes, type, false, at::MemoryFormat::ChannelsLast);
}

// Convolves all images into `out`, and writes the positions of the maxima to `where` unless it is
// null.
void convolve(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
              int64_t padding, const Sizes& sizes, float* out, uint8_t* where) {
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
  const int64_t taps = 4 * size * weight.size(1) * weight.size(2) * weight.size(3);
  at::parallel_for(0, sizes[0], std::max<int64_t>(1, kTapGrain / taps),
                   [&](int64_t begin, int64_t end) {
                     PaddedImages images(x, padding, layer.row);
                     for (int64_t i = begin; i < end; ++i) {
                       best.run(layer, images.image(i), out + i * size,
                                where == nullptr ? nullptr : where + i * size);
                     }
                   });
}

at::Tensor pooled_convolution(const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, int64_t padding) {
  convolution_op::check(x, weight, bias, padding);
  const Sizes sizes = convolution_op::sizes(x.sizes(), weight.sizes(), padding);
  at::Tensor out = empty(sizes, at::kFloat);
  convolve(x, weight, bias, padding, sizes, out.mutable_data_ptr<float>(), nullptr);
  return out;
}

std::tuple<at::Tensor, at::Tensor> pooled_convolution_forward(const at::Tensor& x,
                                                              const at::Tensor& weight,
                                                              const std::optional<at::Tensor>& bias,
                                                              int64_t padding) {
  convolution_op::check(x, weight, bias, padding);
  const Sizes sizes = convolution_op::sizes(x.sizes(), weight.sizes(), padding);
  at::Tensor out = empty(sizes, at::kFloat), where = empty(sizes, at::kByte);
  convolve(x, weight, bias, padding, sizes, out.mutable_data_ptr<float>(),
           where.mutable_data_ptr<uint8_t>());
  return {out, where};
}

TORCH_LIBRARY_IMPL(fededge, CPU, m) {
  m.impl("pooled_convolution", TORCH_FN(pooled_convolution));
  m.impl("pooled_convolution_forward", TORCH_FN(pooled_convolution_forward));
}

}  // namespace
}  // namespace fededge::cpu
