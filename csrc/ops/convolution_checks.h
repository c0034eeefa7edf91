// Argument checks of the pooled convolution, and the shape of its output.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

namespace fededge::convolution_op {

inline constexpr char kOp[] = "pooled_convolution";

inline void check_numbers(const char* name, const at::Tensor& t, const at::Tensor& x) {
  TORCH_CHECK_TYPE(t.scalar_type() == at::kFloat, kOp, ": ", name, " is ", t.scalar_type(),
                   ", expected Float");
  TORCH_CHECK_VALUE(t.device() == x.device(), kOp, ": ", name, " is on ", t.device(),
                    ", but x is on ", x.device());
}

using Sizes = std::array<int64_t, 4>;

// The shape of the pooled output: [images, outputs, rows, columns].
template <class Given>
auto sizes(const Given& x, const Given& weight, int64_t padding) {
  using Size = std::decay_t<decltype(x[0])>;
  const auto pooled = [&](int i) -> Size { return (x[i] + 2 * padding - weight[i] + 1) / 2; };
  return std::array<Size, 4>{x[0], weight[0], pooled(2), pooled(3)};
}

inline void check(const at::Tensor& x, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias, int64_t padding) {
  TORCH_CHECK_VALUE(
      x.dim() == 4 && weight.dim() == 4 && x.size(1) == weight.size(1), kOp, ": x has shape ",
      x.sizes(), " and weight ", weight.sizes(),
      ", they must be [images, channels, rows, columns] and [outputs, channels, rows, "
      "columns]");
  TORCH_CHECK_VALUE(weight.numel() > 0, kOp, ": weight has shape ", weight.sizes(),
                    ", in which there is nothing");
  TORCH_CHECK_VALUE(padding >= 0 && padding < (int64_t{1} << 30), kOp, ": the padding is ", padding,
                    ", it must be at least 0");
  check_numbers("x", x, x);
  check_numbers("weight", weight, x);
  if (bias.has_value()) {
    check_numbers("bias", *bias, x);
    TORCH_CHECK_VALUE(bias->dim() == 1 && bias->size(0) == weight.size(0), kOp, ": bias has shape ",
                      bias->sizes(), ", expected [", weight.size(0), "]");
  }
  for (const int i : {2, 3}) {
    TORCH_CHECK_VALUE(x.size(i) + 2 * padding > weight.size(i), kOp, ": images of shape ",
                      x.sizes(), " leave nothing to pool after a kernel of shape ", weight.sizes());
  }
}

// Checks the arguments of the backward op. `gradient` and `where` have the shape of the output.
inline void check_backward(const at::Tensor& gradient, const at::Tensor& where, const at::Tensor& x,
                           const at::Tensor& weight, int64_t padding) {
  check(x, weight, std::nullopt, padding);
  check_numbers("gradient", gradient, x);
  const Sizes expected = sizes(x.sizes(), weight.sizes(), padding);
  TORCH_CHECK_VALUE(gradient.sizes() == expected, kOp, ": gradient has shape ", gradient.sizes(),
                    ", expected ", at::IntArrayRef(expected));
  TORCH_CHECK_VALUE(
      where.sizes() == expected && where.scalar_type() == at::kByte && where.device() == x.device(),
      kOp, ": where has shape ", where.sizes(), " and is ", where.scalar_type(), " on ",
      where.device(), ", expected ", at::IntArrayRef(expected), " and Byte on ", x.device());
}

}  // namespace fededge::convolution_op
