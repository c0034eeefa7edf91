// What the backward passes of fused ops have in common.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace fededge {

// How torch holds its nodes differs between its versions.
using NodePointer = decltype(torch::autograd::Edge::function);

template <class Node, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

// Where a gradient would be differentiated again: taken for a constant it would be silently wrong.
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
