// Schemas of the in-place ops, and the autograd kernel that refuses gradients through them.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace {

// Raises an error if an argument requires a gradient. torch's own autograd fallback looks at
// returned tensors only; these ops return nothing, so that a gradient through them would be
// silently wrong.
void refuse_gradients(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; at::GradMode::is_enabled() && i < arguments.size(); ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, arguments.size());
    TORCH_CHECK(!value.isTensor() || !value.toTensor().requires_grad(), op.schema().name(), ": ",
                arguments[i].name(), " requires a gradient, which this op cannot give");
  }
  at::AutoDispatchBelowAutograd guard;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

}  // namespace

TORCH_LIBRARY(fededge, m) {
  m.def(
      "ala_step_(Tensor(a!) W, Tensor(b!) mixed, Tensor grad, Tensor local, Tensor received, "
      "float eta) -> ()");
  m.def("ema_(Tensor(a!) target, Tensor source, float mu) -> ()");
  m.def(
      "sgd_step_(Tensor(a!) w, Tensor grad, Tensor(b!)? momentum_buffer, float lr, "
      "float momentum, float weight_decay, float kappa, Tensor? anchor, Tensor? bias, "
      "Tensor? mask) -> ()");
  m.def(
      "probability_sums_(Tensor(a!) num, Tensor(b!) den, Tensor z, Tensor[] labels, "
      "float[] shares) -> ()");
}

TORCH_LIBRARY_IMPL(fededge, Autograd, m) {
  for (const char* op :
       {"ala_step_", "ema_", "sgd_step_", "probability_sums_", "pooled_convolution_forward"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&refuse_gradients>());
  }
}
