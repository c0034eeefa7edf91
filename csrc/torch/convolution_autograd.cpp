// The pooled convolution's schemas, meta functions (output shapes) and autograd node.
//
// If a gradient is needed, `pooled_convolution_forward` also returns the position of each maximum.
// Only these positions have a gradient, and `pooled_convolution_backward` visits no others.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <tuple>

#include "ops/convolution_checks.h"
#include "torch/autograd_node.h"

namespace fededge {
namespace {

using at::Tensor;
using convolution_op::kOp;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

using Needed = std::array<bool, 3>;
using Results = std::tuple<Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

using Plain = Tensor(const Tensor&, const Tensor&, const OptionalTensor&, int64_t);
using Forward = Results(const Tensor&, const Tensor&, const OptionalTensor&, int64_t);
using Backward = Gradients(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t,
                           Needed);

template <class Signature>
auto find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

Gradients pooled_convolution_backward(const Tensor& gradient, const Tensor& where, const Tensor& x,
                                      const Tensor& weight, int64_t padding, Needed needed) {
  static const auto op = find<Backward>("fededge::pooled_convolution_backward");
  return op.call(gradient, where, x, weight, padding, needed);
}

class PooledConvolutionBackward : public torch::autograd::Node {
 public:
  PooledConvolutionBackward(const Tensor& x, const Tensor& weight, const Tensor& where,
                            int64_t padding)
      : x_(x, false), weight_(weight, false), where_(where, false), padding_(padding) {}

  variable_list apply(variable_list&& incoming) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!incoming[0].defined()) return variable_list(3);
    Needed needed;
    for (size_t i = 0; i < needed.size(); ++i) needed[i] = task_should_compute_output(i);
    const auto [x, weight, bias] = pooled_convolution_backward(
        incoming[0], where_.unpack(), x_.unpack(), weight_.unpack(), padding_, needed);
    return {x, weight, bias};
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable* saved : {&x_, &weight_, &where_}) saved->reset_data();
  }

  std::string name() const override { return kOp; }

 private:
  SavedVariable x_;
  SavedVariable weight_;
  SavedVariable where_;
  int64_t padding_;
};

Tensor pooled_convolution_autograd(const Tensor& x, const Tensor& weight,
                                   const OptionalTensor& bias, int64_t padding) {
  using namespace torch::autograd;
  static const auto plain = find<Plain>("fededge::pooled_convolution");
  static const auto forward = find<Forward>("fededge::pooled_convolution_forward");
  TORCH_CHECK(!isFwGradDefined(x) && !isFwGradDefined(weight) && !isFwGradDefined(bias), kOp,
              " has no forward-mode derivative");
  const bool needs_gradient = compute_requires_grad(x, weight, bias);
  at::AutoDispatchBelowADInplaceOrView below;
  if (!needs_gradient) return plain.call(x, weight, bias, padding);
  auto [out, where] = forward.call(x, weight, bias, padding);
  NodePointer node = make_node<PooledConvolutionBackward>(x, weight, where, padding);
  node->set_next_edges(collect_next_edges(x, weight, bias));
  set_history(out, node);
  return out;
}

Gradients pooled_convolution_backward_autograd(const Tensor& gradient, const Tensor& where,
                                               const Tensor& x, const Tensor& weight,
                                               int64_t padding, Needed needed) {
  using namespace torch::autograd;
  const bool again = compute_requires_grad(gradient, x, weight);
  Gradients out = [&] {
    at::AutoDispatchBelowADInplaceOrView below;
    return pooled_convolution_backward(gradient, where, x, weight, padding, needed);
  }();
  if (again) {
    NodePointer node = make_node<Final>(kOp);
    node->set_next_edges(collect_next_edges(gradient, x, weight));
    std::apply([&](const auto&... one) { (set_history(one, node), ...); }, out);
  }
  return out;
}

Tensor empty_like_output(const Tensor& x, const Tensor& weight, int64_t padding,
                         at::ScalarType type) {
  const auto sizes = convolution_op::sizes(x.sym_sizes(), weight.sym_sizes(), padding);
  return at::empty_symint(sizes, x.options().dtype(type), at::MemoryFormat::ChannelsLast);
}

Tensor pooled_convolution_meta(const Tensor& x, const Tensor& weight, const OptionalTensor&,
                               int64_t padding) {
  return empty_like_output(x, weight, padding, at::kFloat);
}

Results pooled_convolution_forward_meta(const Tensor& x, const Tensor& weight,
                                        const OptionalTensor&, int64_t padding) {
  return {empty_like_output(x, weight, padding, at::kFloat),
          empty_like_output(x, weight, padding, at::kByte)};
}

Gradients pooled_convolution_backward_meta(const Tensor&, const Tensor&, const Tensor& x,
                                           const Tensor& weight, int64_t, Needed needed) {
  const auto empty = [&](bool wanted, c10::SymIntArrayRef sizes, at::MemoryFormat format) {
    return wanted ? at::empty_symint(sizes, x.options(), format) : Tensor();
  };
  const auto plain = at::MemoryFormat::Contiguous;
  return {empty(needed[0], x.sym_sizes(), at::MemoryFormat::ChannelsLast),
          empty(needed[1], weight.sym_sizes(), plain),
          empty(needed[2], weight.sym_sizes().slice(0, 1), plain)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fededge, m) {
  m.def("pooled_convolution(Tensor x, Tensor weight, Tensor? bias, int padding) -> Tensor");
  m.def(
      "pooled_convolution_forward(Tensor x, Tensor weight, Tensor? bias, int padding) -> "
      "(Tensor out, Tensor where)");
  m.def(
      "pooled_convolution_backward(Tensor gradient, Tensor where, Tensor x, Tensor weight, "
      "int padding, bool[3] needed) -> (Tensor x, Tensor weight, Tensor bias)");
}

TORCH_LIBRARY_IMPL(fededge, Autograd, m) {
  m.impl("pooled_convolution", TORCH_FN(pooled_convolution_autograd));
  m.impl("pooled_convolution_backward", TORCH_FN(pooled_convolution_backward_autograd));
}

TORCH_LIBRARY_IMPL(fededge, Meta, m) {
  m.impl("pooled_convolution", TORCH_FN(pooled_convolution_meta));
  m.impl("pooled_convolution_forward", TORCH_FN(pooled_convolution_forward_meta));
  m.impl("pooled_convolution_backward", TORCH_FN(pooled_convolution_backward_meta));
}

}  // namespace fededge
