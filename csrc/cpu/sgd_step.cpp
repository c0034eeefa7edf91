#include "kernels/sgd_step.h"

#include <torch/library.h>

#include <array>
#include <initializer_list>

#include "cpu/spans.h"
#include "cpu/tensors.h"

namespace fededge::cpu {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

constexpr char kOp[] = "sgd_step_";

// Turns "is this vector there?", asked at run time, into the template's arguments one by one.
template <bool... Known>
void launch(int64_t n, const SgdVectors& v) {
  if constexpr (sizeof...(Known) == 4) {
    for_each(n, SgdStep<Known...>{v});
  } else {
    const std::array<bool, 4> there{v.buffer != nullptr, v.anchor != nullptr, v.bias != nullptr,
                                    v.mask != nullptr};
    if (there[sizeof...(Known)]) {
      launch<Known..., true>(n, v);
    } else {
      launch<Known..., false>(n, v);
    }
  }
}

// The op writes the buffer as well as w, so that it shares no memory with anything else.
float* momentum_pointer(const OptionalTensor& buffer, const at::Tensor& w,
                        std::initializer_list<OptionalTensor> others) {
  if (!buffer.has_value()) return nullptr;
  check_vector(kOp, "momentum_buffer", *buffer, w.numel());
  at::assert_no_overlap(w, *buffer);
  for (const OptionalTensor& other : others) {
    if (other.has_value()) at::assert_no_overlap(*other, *buffer);
  }
  return output<float>(*buffer);
}

void sgd_step_(const at::Tensor& w, const at::Tensor& grad, const OptionalTensor& momentum_buffer,
               double lr, double momentum, double weight_decay, double kappa,
               const OptionalTensor& anchor, const OptionalTensor& bias,
               const OptionalTensor& mask) {
  check_vector(kOp, "w", w, w.numel());
  TORCH_CHECK(momentum_buffer.has_value() || momentum == 0.0, kOp, ": momentum is ", momentum,
              " but there is no momentum_buffer");
  TORCH_CHECK(anchor.has_value() || kappa == 0.0, kOp, ": kappa is ", kappa,
              " but there is no anchor");
  SgdVectors v{};
  v.grad = input(kOp, "grad", grad, w);
  v.anchor = input(kOp, "anchor", anchor, w);
  v.bias = input(kOp, "bias", bias, w);
  v.mask = input(kOp, "mask", mask, w);
  v.buffer = momentum_pointer(momentum_buffer, w, {grad, anchor, bias, mask});
  v.w = output<float>(w);
  v.lr = static_cast<float>(lr);
  v.momentum = static_cast<float>(momentum);
  v.weight_decay = static_cast<float>(weight_decay);
  v.kappa = static_cast<float>(kappa);
  launch<>(w.numel(), v);
}

TORCH_LIBRARY_IMPL(fededge, CPU, m) { m.impl("sgd_step_", TORCH_FN(sgd_step_)); }

}  // namespace
}  // namespace fededge::cpu
