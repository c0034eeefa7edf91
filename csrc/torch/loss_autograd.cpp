// Schemas, meta functions (output shapes) and the autograd node of the losses.
//
// The forward pass computes a loss together with its gradient, and the backward pass only scales
// the gradient. Each loss is two ops: `x_forward` returns both, `x` is the public one and returns
// the loss.
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <mutex>
#include <tuple>

#include "ops/label_loss_op.h"
#include "torch/autograd_node.h"

namespace fededge {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::variable_list;

// True if backward starts from the loss itself, the usual case. Traced tensors have no values.
bool is_one(const Tensor& x) {
  if (!x.device().is_cpu() || at::isTensorSubclassLike(x)) return false;
  if (x.scalar_type() == at::kFloat) return *x.const_data_ptr<float>() == 1.0f;
  return x.scalar_type() == at::kDouble && *x.const_data_ptr<double>() == 1.0;
}

Tensor times(const Tensor& incoming, const Tensor& gradient) {
  return is_one(incoming) ? gradient : gradient.mul(incoming);
}

void refuse_gradient(const char* op, const char* name, const OptionalTensor& t) {
  TORCH_CHECK(!t.has_value() || !t->requires_grad() || !at::GradMode::is_enabled(), op, ": ", name,
              " requires a gradient, which this op cannot give: call .detach() first");
}

// The loss and its gradient with respect to the logits. If the added logits have another gradient,
// it has the shape [2, rows, classes], and the second matrix is theirs.
using Result = std::tuple<Tensor, Tensor>;

// Computes a loss below autograd.
using Forward = c10::function_ref<Result()>;

// The autograd node of every loss, for the logits and the added logits.
//
// It derives from Node, because the bookkeeping of torch::autograd::Function takes longer than a
// small loss. The last backward pass through the node moves the gradient out without a copy.
class LossBackward : public torch::autograd::Node {
 public:
  LossBackward(const char* op, Tensor gradient) : op_(op), gradient_(std::move(gradient)) {}

  variable_list apply(variable_list&& incoming) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list out(2);
    if (!incoming[0].defined()) return out;
    TORCH_CHECK(gradient_.defined(), torch::autograd::ERR_BACKWARD_TWICE);
    // A copy unless this is the last pass: the receiver may change it in place.
    const Tensor gradient = last_ ? std::move(gradient_) : gradient_.clone();
    for (int i = 0; i < 2; ++i) {
      if (!task_should_compute_output(i)) continue;
      out[i] = times(incoming[0], gradient.dim() == 3 ? gradient.select(0, i) : gradient);
      if (at::GradMode::is_enabled()) out[i] = final(out[i], incoming[0]);
    }
    return out;
  }

  void will_release_variables() override { last_ = true; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    gradient_.reset();
  }

  std::string name() const override { return op_; }

 private:
  // Connects the gradient to all its inputs, so that differentiating it again raises the error.
  Tensor final(const Tensor& gradient, const Tensor& incoming) const {
    torch::autograd::edge_list edges = torch::autograd::collect_next_edges(incoming);
    edges.insert(edges.end(), next_edges().begin(), next_edges().end());
    const NodePointer node = make_node<Final>(op_);
    node->set_next_edges(std::move(edges));
    Tensor out = gradient.detach();
    torch::autograd::set_history(out, node);
    return out;
  }

  const char* op_;
  Tensor gradient_;
  bool last_ = false;
};

Result differentiable(const char* op, const Tensor& z, const OptionalTensor& added,
                      const Forward& compute) {
  using namespace torch::autograd;
  TORCH_CHECK(!isFwGradDefined(z) && !isFwGradDefined(added), op,
              " has no forward-mode derivative");
  Result result = [&] {
    at::AutoDispatchBelowADInplaceOrView below;
    return compute();
  }();
  if (compute_requires_grad(z, added)) {
    NodePointer node = make_node<LossBackward>(op, std::get<1>(result));
    node->set_next_edges(collect_next_edges(z, added));
    set_history(std::get<0>(result), node);
  }
  return result;
}

constexpr char kLabelLoss[] = "label_loss";
constexpr char kDistillation[] = "distillation";

// The gradient of 16-bit logits is float32 until the backward pass has scaled it.
Tensor gradient_like(const Tensor& z, bool apart) {
  const auto type = z.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  c10::SmallVector<c10::SymInt, 3> sizes(z.sym_sizes().begin(), z.sym_sizes().end());
  if (apart) sizes.insert(sizes.begin(), 2);
  return at::empty_symint(sizes, z.options().dtype(type));
}

using LabelLossForward = Result(const Tensor&, at::TensorList, at::ArrayRef<double>, double, double,
                                double, const OptionalTensor&, const OptionalTensor&,
                                const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                const OptionalTensor&);

Result label_loss_forward(const Tensor& z, at::TensorList labels, at::ArrayRef<double> shares,
                          double weight, double flat, double soft, const OptionalTensor& scale,
                          const OptionalTensor& shift, const OptionalTensor& factor,
                          const OptionalTensor& added, const OptionalTensor& added_scale,
                          const OptionalTensor& target) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fededge::label_loss_forward", "")
                             .typed<LabelLossForward>();
  return op.call(z, labels, shares, weight, flat, soft, scale, shift, factor, added, added_scale,
                 target);
}

Result label_loss_meta(const Tensor& z, at::TensorList, at::ArrayRef<double>, double, double flat,
                       double, const OptionalTensor& scale, const OptionalTensor&,
                       const OptionalTensor&, const OptionalTensor& added,
                       const OptionalTensor& added_scale, const OptionalTensor&) {
  const bool apart = label_loss_op::two_gradients(added, added_scale, scale, flat);
  return {at::empty({}, z.options()), gradient_like(z, apart)};
}

Result label_loss_autograd(const Tensor& z, at::TensorList labels, at::ArrayRef<double> shares,
                           double weight, double flat, double soft, const OptionalTensor& scale,
                           const OptionalTensor& shift, const OptionalTensor& factor,
                           const OptionalTensor& added, const OptionalTensor& added_scale,
                           const OptionalTensor& target) {
  refuse_gradient(kLabelLoss, "scale", scale);
  refuse_gradient(kLabelLoss, "shift", shift);
  refuse_gradient(kLabelLoss, "factor", factor);
  refuse_gradient(kLabelLoss, "added_scale", added_scale);
  refuse_gradient(kLabelLoss, "target", target);
  return differentiable(kLabelLoss, z, added, [&] {
    return label_loss_forward(z, labels, shares, weight, flat, soft, scale, shift, factor, added,
                              added_scale, target);
  });
}

Tensor label_loss(const Tensor& z, at::TensorList labels, at::ArrayRef<double> shares,
                  double weight, double flat, double soft, const OptionalTensor& scale,
                  const OptionalTensor& shift, const OptionalTensor& factor,
                  const OptionalTensor& added, const OptionalTensor& added_scale,
                  const OptionalTensor& target) {
  return std::get<0>(label_loss_forward(z, labels, shares, weight, flat, soft, scale, shift, factor,
                                        added, added_scale, target));
}

using DistillationForward = Result(const Tensor&, const Tensor&, double, const OptionalTensor&);

Result distillation_forward(const Tensor& z, const Tensor& teacher, double temperature,
                            const OptionalTensor& without) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fededge::distillation_forward", "")
                             .typed<DistillationForward>();
  return op.call(z, teacher, temperature, without);
}

Result distillation_meta(const Tensor& z, const Tensor&, double, const OptionalTensor&) {
  return {at::empty({}, z.options()), gradient_like(z, false)};
}

Result distillation_autograd(const Tensor& z, const Tensor& teacher, double temperature,
                             const OptionalTensor& without) {
  refuse_gradient(kDistillation, "teacher", teacher);
  return differentiable(kDistillation, z, std::nullopt,
                        [&] { return distillation_forward(z, teacher, temperature, without); });
}

Tensor distillation(const Tensor& z, const Tensor& teacher, double temperature,
                    const OptionalTensor& without) {
  return std::get<0>(distillation_forward(z, teacher, temperature, without));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fededge, m) {
#define FEDEDGE_LABEL_LOSS                                                                      \
  "(Tensor z, Tensor[] labels, float[] shares, float weight=1., float flat=0., float soft=0., " \
  "Tensor? scale=None, Tensor? shift=None, Tensor? factor=None, Tensor? added=None, "           \
  "Tensor? added_scale=None, Tensor? target=None)"
  m.def("label_loss" FEDEDGE_LABEL_LOSS " -> Tensor");
  m.def("label_loss_forward" FEDEDGE_LABEL_LOSS " -> (Tensor loss, Tensor gradient)");
#undef FEDEDGE_LABEL_LOSS
#define FEDEDGE_DISTILLATION \
  "(Tensor z, Tensor teacher, float temperature=1., Tensor? without=None)"
  m.def("distillation" FEDEDGE_DISTILLATION " -> Tensor");
  m.def("distillation_forward" FEDEDGE_DISTILLATION " -> (Tensor loss, Tensor gradient)");
#undef FEDEDGE_DISTILLATION
}

TORCH_LIBRARY_IMPL(fededge, CompositeImplicitAutograd, m) {
  m.impl("label_loss", TORCH_FN(label_loss));
  m.impl("distillation", TORCH_FN(distillation));
}

TORCH_LIBRARY_IMPL(fededge, Autograd, m) {
  m.impl("label_loss_forward", TORCH_FN(label_loss_autograd));
  m.impl("distillation_forward", TORCH_FN(distillation_autograd));
}

TORCH_LIBRARY_IMPL(fededge, Meta, m) {
  m.impl("label_loss_forward", TORCH_FN(label_loss_meta));
  m.impl("distillation_forward", TORCH_FN(distillation_meta));
}

}  // namespace fededge
