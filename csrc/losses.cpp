// The losses as torch knows them: their schemas, the shapes of their results, their gradients.
//
// A loss is computed together with its gradient, and the backward pass only multiplies. So each is
// two ops: `x_forward` returns both, and `x`, which is what one calls, the loss alone.
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

namespace fededge {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A gradient that cannot be differentiated again: taken for a constant it would be silently wrong.
struct Final : public torch::autograd::Function<Final> {
  static Tensor forward(AutogradContext* context, const Tensor& gradient, const std::string& op) {
    context->saved_data["op"] = op;
    return gradient.alias();
  }

  static variable_list backward(AutogradContext* context, const variable_list&) {
    TORCH_CHECK(false, context->saved_data["op"].toStringRef(),
                " is fused with its gradient and has no second derivative: write the loss in plain "
                "torch where one is needed");
  }
};

// Most often backward starts from the loss itself. Traced tensors have no value to look at.
bool is_one(const Tensor& x) {
  return x.device().is_cpu() && !at::isTensorSubclassLike(x) && x.item().toDouble() == 1.0;
}

Tensor times(const Tensor& incoming, Tensor gradient, at::ScalarType type, const std::string& op) {
  if (!is_one(incoming)) gradient = gradient.mul(incoming);
  gradient = gradient.to(type);
  if (!at::GradMode::is_enabled()) return gradient;
  return Final::apply(gradient.detach().requires_grad_(true), op);
}

void refuse_gradient(const char* op, const char* name, const OptionalTensor& t) {
  TORCH_CHECK(!t.has_value() || !t->requires_grad() || !at::GradMode::is_enabled(), op, ": ", name,
              " requires a gradient, which this op cannot give: call .detach() first");
}

// The loss, its gradient by the logits, and by what was added to them if that is another one.
using Result = std::tuple<Tensor, Tensor, Tensor>;

// A loss below autograd, ready to be called.
struct Forward {
  const char* op;
  c10::function_ref<Result()> run;
};

// Any of the losses, as a function of the logits and of what is added to them.
struct Loss : public torch::autograd::Function<Loss> {
  static variable_list forward(AutogradContext* context, const Tensor& z,
                               const OptionalTensor& added, const Forward& forward) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [loss, dz, dadded] = forward.run();
    context->save_for_backward({dz, dadded});
    context->mark_non_differentiable({dz, dadded});
    context->set_materialize_grads(false);
    context->saved_data["op"] = std::string(forward.op);
    context->saved_data["z"] = static_cast<int64_t>(z.scalar_type());
    if (added.has_value()) {
      context->saved_data["added"] = static_cast<int64_t>(added->scalar_type());
    }
    return {loss, dz, dadded};
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    variable_list out(3);
    if (!incoming[0].defined()) return out;
    const variable_list saved = context->get_saved_variables();
    const std::string& op = context->saved_data["op"].toStringRef();
    const auto type = [&](const char* key) {
      return static_cast<at::ScalarType>(context->saved_data[key].toInt());
    };
    if (context->needs_input_grad(0)) out[0] = times(incoming[0], saved[0], type("z"), op);
    if (context->saved_data.count("added") && context->needs_input_grad(1)) {
      const bool apart = saved[1].sym_numel() != 0;
      out[1] = times(incoming[0], saved[apart ? 1 : 0], type("added"), op);
    }
    return out;
  }
};

Result differentiable(const Tensor& z, const OptionalTensor& added, const Forward& forward) {
  const variable_list out = Loss::apply(z, added, forward);
  return {out[0], out[1], out[2]};
}

// 16-bit logits have a 32-bit gradient until the backward pass has scaled it.
Tensor gradient_like(const Tensor& z) {
  const auto type = z.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::empty_symint(z.sym_sizes(), z.options().dtype(type));
}

using LabelLossForward = Result(const Tensor&, at::TensorList, at::ArrayRef<double>, double, double,
                                double, const OptionalTensor&, const OptionalTensor&,
                                const OptionalTensor&, const OptionalTensor&,
                                const OptionalTensor&);

constexpr char kLabelLoss[] = "label_loss";

Result label_loss_forward(const Tensor& z, at::TensorList labels,
                                   at::ArrayRef<double> shares, double weight, double flat,
                                   double soft, const OptionalTensor& scale,
                                   const OptionalTensor& shift, const OptionalTensor& factor,
                                   const OptionalTensor& added, const OptionalTensor& target) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fededge::label_loss_forward", "")
                             .typed<LabelLossForward>();
  return op.call(z, labels, shares, weight, flat, soft, scale, shift, factor, added, target);
}

Result label_loss_meta(const Tensor& z, at::TensorList, at::ArrayRef<double>, double,
                                double flat, double, const OptionalTensor& scale,
                                const OptionalTensor&, const OptionalTensor&,
                                const OptionalTensor& added, const OptionalTensor&) {
  const bool apart = added.has_value() && (scale.has_value() || flat != 0);
  const Tensor dz = gradient_like(z);
  return {at::empty({}, z.options()), dz, apart ? at::empty_like(dz) : at::empty({0}, dz.options())};
}

Result label_loss_autograd(const Tensor& z, at::TensorList labels,
                                    at::ArrayRef<double> shares, double weight, double flat,
                                    double soft, const OptionalTensor& scale,
                                    const OptionalTensor& shift, const OptionalTensor& factor,
                                    const OptionalTensor& added, const OptionalTensor& target) {
  refuse_gradient(kLabelLoss, "scale", scale);
  refuse_gradient(kLabelLoss, "shift", shift);
  refuse_gradient(kLabelLoss, "factor", factor);
  refuse_gradient(kLabelLoss, "target", target);
  return differentiable(z, added, {kLabelLoss, [&] {
    return label_loss_forward(z, labels, shares, weight, flat, soft, scale, shift, factor, added,
                              target);
  }});
}

Tensor label_loss(const Tensor& z, at::TensorList labels, at::ArrayRef<double> shares, double weight,
                  double flat, double soft, const OptionalTensor& scale, const OptionalTensor& shift,
                  const OptionalTensor& factor, const OptionalTensor& added,
                  const OptionalTensor& target) {
  return std::get<0>(label_loss_forward(z, labels, shares, weight, flat, soft, scale, shift, factor,
                                        added, target));
}

using DistillationForward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, double,
                                                      const OptionalTensor&);

constexpr char kDistillation[] = "distillation";

std::tuple<Tensor, Tensor> distillation_forward(const Tensor& z, const Tensor& teacher,
                                                double temperature, const OptionalTensor& without) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fededge::distillation_forward", "")
                             .typed<DistillationForward>();
  return op.call(z, teacher, temperature, without);
}

std::tuple<Tensor, Tensor> distillation_meta(const Tensor& z, const Tensor&, double,
                                             const OptionalTensor&) {
  return {at::empty({}, z.options()), gradient_like(z)};
}

std::tuple<Tensor, Tensor> distillation_autograd(const Tensor& z, const Tensor& teacher,
                                                 double temperature,
                                                 const OptionalTensor& without) {
  refuse_gradient(kDistillation, "teacher", teacher);
  const auto [loss, dz, none] = differentiable(z, std::nullopt, {kDistillation, [&]() -> Result {
    const auto [loss, dz] = distillation_forward(z, teacher, temperature, without);
    return {loss, dz, at::empty({0}, dz.options())};
  }});
  return {loss, dz};
}

Tensor distillation(const Tensor& z, const Tensor& teacher, double temperature,
                    const OptionalTensor& without) {
  return std::get<0>(distillation_forward(z, teacher, temperature, without));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fededge, m) {
#define FEDEDGE_LABEL_LOSS                                                                         \
  "(Tensor z, Tensor[] labels, float[] shares, float weight=1., float flat=0., float soft=0., "     \
  "Tensor? scale=None, Tensor? shift=None, Tensor? factor=None, Tensor? added=None, "               \
  "Tensor? target=None)"
  m.def("label_loss" FEDEDGE_LABEL_LOSS " -> Tensor");
  m.def("label_loss_forward" FEDEDGE_LABEL_LOSS " -> (Tensor loss, Tensor dz, Tensor dadded)");
#undef FEDEDGE_LABEL_LOSS
#define FEDEDGE_DISTILLATION \
  "(Tensor z, Tensor teacher, float temperature=1., Tensor? without=None)"
  m.def("distillation" FEDEDGE_DISTILLATION " -> Tensor");
  m.def("distillation_forward" FEDEDGE_DISTILLATION " -> (Tensor loss, Tensor dz)");
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
