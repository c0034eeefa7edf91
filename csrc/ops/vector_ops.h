// The flat-vector ops for any device: check the tensors and build the span.
//
// A Device has a static function for_each(written, span) that runs the span over every element of
// the tensor `written`.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <initializer_list>

#include "kernels/ala_step.h"
#include "kernels/ema.h"
#include "kernels/sgd_step.h"
#include "ops/vector_checks.h"

namespace fededge {

template <class Device>
void ema_(const at::Tensor& target, const at::Tensor& source, double mu) {
  check_vector("ema_", "target", target, target);
  const float* from = input("ema_", "source", source, target);
  Device::for_each(target, Ema{output<float>(target), from, static_cast<float>(mu),
                               static_cast<float>(1.0 - mu)});
}

// Checks the second output of an op: it must not overlap the first output or any input.
inline void check_second(const char* op, const char* name, const at::Tensor& other,
                         const at::Tensor& written,
                         std::initializer_list<std::optional<at::Tensor>> read) {
  check_vector(op, name, other, written);
  at::assert_no_overlap(written, other);
  for (const std::optional<at::Tensor>& t : read) {
    if (t.has_value()) at::assert_no_overlap(*t, other);
  }
}

template <class Device>
void ala_step_(const at::Tensor& W, const at::Tensor& mixed, const at::Tensor& grad,
               const at::Tensor& local, const at::Tensor& received, double eta) {
  constexpr char kOp[] = "ala_step_";
  check_vector(kOp, "W", W, W);
  AlaStep span{};
  span.grad = input(kOp, "grad", grad, W);
  span.local = input(kOp, "local", local, W);
  span.received = input(kOp, "received", received, W);
  check_second(kOp, "mixed", mixed, W, {grad, local, received});
  span.W = output<float>(W);
  span.mixed = output<float>(mixed);
  span.eta = static_cast<float>(eta);
  Device::for_each(W, span);
}

// Turns the run-time question "is this vector present?" into template arguments, one by one.
template <class Device, bool... Known>
void launch_sgd_step(const at::Tensor& w, const SgdVectors& v) {
  if constexpr (sizeof...(Known) == 4) {
    Device::for_each(w, SgdStep<Known...>{v});
  } else {
    const std::array<bool, 4> there{v.buffer != nullptr, v.anchor != nullptr, v.bias != nullptr,
                                    v.mask != nullptr};
    if (there[sizeof...(Known)]) {
      launch_sgd_step<Device, Known..., true>(w, v);
    } else {
      launch_sgd_step<Device, Known..., false>(w, v);
    }
  }
}

template <class Device>
void sgd_step_(const at::Tensor& w, const at::Tensor& grad,
               const std::optional<at::Tensor>& momentum_buffer, double lr, double momentum,
               double weight_decay, double kappa, const std::optional<at::Tensor>& anchor,
               const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& mask) {
  constexpr char kOp[] = "sgd_step_";
  check_vector(kOp, "w", w, w);
  TORCH_CHECK(momentum_buffer.has_value() || momentum == 0.0, kOp, ": momentum is ", momentum,
              " but there is no momentum_buffer");
  TORCH_CHECK(anchor.has_value() || kappa == 0.0, kOp, ": kappa is ", kappa,
              " but there is no anchor");
  SgdVectors v{};
  v.grad = input(kOp, "grad", grad, w);
  v.anchor = input(kOp, "anchor", anchor, w);
  v.bias = input(kOp, "bias", bias, w);
  v.mask = input(kOp, "mask", mask, w);
  if (momentum_buffer.has_value()) {
    check_second(kOp, "momentum_buffer", *momentum_buffer, w, {grad, anchor, bias, mask});
    v.buffer = output<float>(*momentum_buffer);
  }
  v.w = output<float>(w);
  v.lr = static_cast<float>(lr);
  v.momentum = static_cast<float>(momentum);
  v.weight_decay = static_cast<float>(weight_decay);
  v.kappa = static_cast<float>(kappa);
  launch_sgd_step<Device>(w, v);
}

template <class Device>
void register_vectors(torch::Library& m) {
  m.impl("ala_step_", TORCH_FN(ala_step_<Device>));
  m.impl("ema_", TORCH_FN(ema_<Device>));
  m.impl("sgd_step_", TORCH_FN(sgd_step_<Device>));
}

}  // namespace fededge
