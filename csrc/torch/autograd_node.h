// Helpers for the autograd nodes of fused ops.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace fededge {

// std::shared_ptr or c10::intrusive_ptr, depending on the version of torch.
using NodePointer = decltype(torch::autograd::Edge::function);

template <class Node, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

// The node behind a gradient, which raises an error when the gradient is differentiated again.
// Without it torch would take the gradient for a constant, and second derivatives would be silently
// wrong.
class Final : public torch::autograd::Node {
 public:
  explicit Final(const char* op) : op_(op) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    TORCH_CHECK(false, op_,
                " is fused with its gradient and has no second derivative: write it in plain torch "
                "where one is needed");
  }

  std::string name() const override { return op_; }

 private:
  const char* op_;
};

}  // namespace fededge
