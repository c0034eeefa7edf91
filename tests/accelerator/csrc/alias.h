// CPU tensors over the memory of device tensors, without a copy, for the time of one op.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>

namespace emulated {

inline constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

// An uninitialised tensor on the device.
at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type);
at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type);

// The arguments and results of one op. Tensors of the device become aliases on the CPU, the op runs
// there, and its results become tensors of the device.
class Aliases {
 public:
  // The CPU tensor that stands for a device tensor. A CPU tensor stands for itself if it is one
  // number, and is refused otherwise, as on a GPU.
  at::Tensor host(const at::Tensor& t);

  // The device tensor for a result of the op: an argument, a view of one, or a copy.
  at::Tensor device(const at::Tensor& result) const;

  // Moves what the op did to the shape and the storage of its outputs to the device tensors.
  void take_shapes() const;

 private:
  struct Pair {
    at::Tensor device;
    at::Tensor host;
    const void* data;  // where the alias began
  };

  c10::Storage storage_of(const at::Tensor& t) const;

  c10::SmallVector<Pair, 8> pairs_;
};

}  // namespace emulated
