// Torch's ops on the device: each runs on the CPU, over aliases of the device tensors.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <string>
#include <unordered_set>

#include "alias.h"
#include "generator.h"
#include "ledger.h"
#include "pending.h"

namespace emulated {
namespace {

using c10::IValue;

// Ops whose output size depends on values, or whose checks read them: a GPU waits in each.
bool reads_values(const std::string& name) {
  static const std::unordered_set<std::string> ops{
      "aten::_unique",           "aten::_unique2",           "aten::bincount",
      "aten::masked_select",     "aten::multinomial",        "aten::nonzero",
      "aten::repeat_interleave", "aten::unique_consecutive", "aten::unique_dim"};
  return ops.count(name) > 0;
}

bool is_indexing(const std::string& name) {
  static const std::unordered_set<std::string> ops{"aten::index", "aten::index_put",
                                                   "aten::index_put_", "aten::_index_put_impl_"};
  return ops.count(name) > 0;
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() == nullptr || result.alias_info()->isWrite()) return false;
  }
  return !schema.returns().empty();
}

bool takes_generator(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// One call of an op.
class Call {
 public:
  explicit Call(const std::string& name) : indexing_(is_indexing(name)) {}

  IValue to_host(const IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) return host(value.toTensor());
    if (value.isTensorList()) return host_list(value.toTensorList());
    if (value.isOptionalTensorList()) return host_list(value.toOptionalTensorList());
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isGenerator()) return engine_of(value.toGenerator());
    if (value.isNone() && takes_generator(argument)) return engine_of(default_generator());
    return value;
  }

  IValue to_device(const IValue& value) {
    if (value.isTensor()) return aliases_.device(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> out;
      for (const at::Tensor& t : value.toTensorVector()) out.push_back(aliases_.device(t));
      return out;
    }
    synchronise();  // the host learns a value
    return value;
  }

  void take_shapes() const { aliases_.take_shapes(); }

 private:
  at::Tensor host(const at::Tensor& t) {
    if (indexing_ && t.defined() && t.is_cpu()) {  // torch moves an index by itself
      count_copy_to_device(t.nbytes());
      synchronise();
      return t;
    }
    const bool mask = t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
    if (indexing_ && seen_ && mask) synchronise();  // its true elements are counted
    seen_ = true;
    return aliases_.host(t);
  }

  template <class Item>
  IValue host_list(const c10::List<Item>& list) {
    c10::List<Item> out;
    for (const Item& item : list) {
      if constexpr (std::is_same_v<Item, at::Tensor>) {
        out.push_back(host(item));
      } else {
        out.push_back(item.has_value() ? Item(host(*item)) : Item());
      }
    }
    return out;
  }

  const bool indexing_;
  bool seen_ = false;  // the indexed tensor itself, the first argument
  Aliases aliases_;
};

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto& arguments = schema.arguments();
  const size_t first = stack->size() - arguments.size();
  if (!is_view(schema)) count_launch();
  if (reads_values(schema.name())) synchronise();
  Call call(schema.name());
  for (size_t i = 0; i < arguments.size(); ++i) {
    (*stack)[first + i] = call.to_host((*stack)[first + i], arguments[i]);
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard uncast(c10::autocast_dispatch_keyset);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.take_shapes();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = call.to_device((*stack)[i]);
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

}  // namespace
}  // namespace emulated
