// Convolutions and dropout, which torch asks of a backend by names of their own.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "alias.h"
#include "generator.h"
#include "ledger.h"

namespace emulated {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

// 16-bit numbers are multiplied as float32: a GPU adds them up in float32 too.
Tensor widened(const Tensor& t) {
  return t.defined() && c10::isReducedFloatingType(t.scalar_type()) ? t.to(at::kFloat) : t;
}

Tensor narrowed(const Tensor& t, at::ScalarType type) { return t.defined() ? t.to(type) : t; }

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  count_launch();
  const at::AutoDispatchBelowADInplaceOrView below;
  Aliases aliases;
  const Tensor x = widened(aliases.host(input)), w = widened(aliases.host(weight));
  const Tensor b = widened(aliases.host(bias.value_or(Tensor())));
  const Tensor out =
      at::convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups);
  return aliases.device(narrowed(out, input.scalar_type()));
}

Gradients convolution_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight,
                               IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                               bool transposed, IntArrayRef output_padding, int64_t groups,
                               std::array<bool, 3> wanted) {
  count_launch();
  const at::AutoDispatchBelowADInplaceOrView below;
  Aliases aliases;
  const Tensor g = widened(aliases.host(gradient)), x = widened(aliases.host(input));
  const Tensor w = widened(aliases.host(weight));
  const auto [dx, dw, db] =
      at::convolution_backward(g, x, w, IntArrayRef{gradient.size(1)}, stride, padding, dilation,
                               transposed, output_padding, groups, wanted);
  const auto back = [&](const Tensor& t) {
    return aliases.device(narrowed(t, input.scalar_type()));
  };
  return {back(dx), back(dw), back(db)};
}

// Torch's own kernel for the CPU draws from the CPU's generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  count_launch();
  const at::AutoDispatchBelowADInplaceOrView below;
  Aliases aliases;
  const Tensor x = aliases.host(input);
  const bool drops = train.value_or(true);
  const Tensor mask = at::empty(x.sizes(), at::kBool);
  drops ? mask.bernoulli_(1 - p, engine_of(default_generator())) : mask.fill_(true);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  return {aliases.device(drops ? x * mask * scale : x.clone()), aliases.device(mask)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.impl("native_dropout", TORCH_FN(native_dropout));
}

}  // namespace
}  // namespace emulated
