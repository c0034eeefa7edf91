// torch.autocast for the device, with the lists of ops that torch has for CUDA.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <string>

#include "alias.h"

namespace emulated {
namespace {

using c10::IValue;
using torch::jit::Stack;

bool is_eligible(const IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& t = value.toTensor();
  return t.is_privateuseone() && t.is_floating_point() && t.scalar_type() != at::kDouble;
}

IValue cast(at::ScalarType type, const IValue& value) {
  if (is_eligible(value)) return at::autocast::cached_cast(type, value.toTensor(), kDevice);
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> out;
  for (const at::Tensor& t : value.toTensorVector()) {
    out.push_back(at::autocast::cached_cast(type, t, kDevice));
  }
  return out;
}

// Casts the arguments, and calls the op once more without autocast.
template <class Change>
void call(const c10::OperatorHandle& op, Stack* stack, const Change& change) {
  const c10::impl::ExcludeDispatchKeyGuard uncast(c10::DispatchKey::AutocastPrivateUse1);
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    (*stack)[first + i] = change((*stack)[first + i], arguments[i]);
  }
  op.callBoxed(stack);
}

void lower(const c10::OperatorHandle& op, Stack* stack) {
  const at::ScalarType type = at::autocast::get_autocast_dtype(kDevice);
  call(op, stack, [&](const IValue& value, const c10::Argument&) { return cast(type, value); });
}

void single(const c10::OperatorHandle& op, Stack* stack) {
  call(op, stack,
       [&](const IValue& value, const c10::Argument&) { return cast(at::kFloat, value); });
}

// The widest type among the arguments.
void promote(const c10::OperatorHandle& op, Stack* stack) {
  at::ScalarType type = at::autocast::get_autocast_dtype(kDevice);
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i) {
    const IValue& value = (*stack)[i];
    if (is_eligible(value) && value.toTensor().scalar_type() == at::kFloat) type = at::kFloat;
  }
  call(op, stack, [&](const IValue& value, const c10::Argument&) { return cast(type, value); });
}

// The op itself computes in float32 if it is told no other type.
void set_dtype(const c10::OperatorHandle& op, Stack* stack) {
  const bool eligible = is_eligible((*stack)[stack->size() - op.schema().arguments().size()]);
  call(op, stack, [&](const IValue& value, const c10::Argument& argument) {
    return eligible && argument.name() == "dtype" && value.isNone() ? IValue(at::kFloat) : value;
  });
}

// "pow, Tensor_Scalar" is aten::pow.Tensor_Scalar.
std::string name_of(std::string words) {
  const size_t comma = words.find(", ");
  if (comma != std::string::npos) words.replace(comma, 2, ".");
  return "aten::" + words;
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define EMULATED_IMPL(words, policy) \
  m.impl(name_of(words).c_str(), torch::CppFunction::makeFromBoxedFunction<&policy>());
#define EMULATED_LOWER(...) EMULATED_IMPL(#__VA_ARGS__, lower)
#define EMULATED_SINGLE(...) EMULATED_IMPL(#__VA_ARGS__, single)
#define EMULATED_PROMOTE(...) EMULATED_IMPL(#__VA_ARGS__, promote)
#define EMULATED_SET_DTYPE(...) EMULATED_IMPL(#__VA_ARGS__, set_dtype)
  AT_FORALL_LOWER_PRECISION_FP(EMULATED_LOWER)
  AT_FORALL_FP32(EMULATED_SINGLE)
  AT_FORALL_FP32_SET_OPT_DTYPE(EMULATED_SET_DTYPE)
  AT_FORALL_PROMOTE(EMULATED_PROMOTE)
  EMULATED_SINGLE(norm, Scalar)
  EMULATED_SINGLE(norm, ScalarOpt_dim)
}

}  // namespace
}  // namespace emulated
