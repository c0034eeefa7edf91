// Converts flat tensors to pointers, with all bounds checks. The Python functions check the same
// first, with friendlier messages.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace fededge {

inline void check_vector(const char* op, const char* name, const at::Tensor& t, int64_t n,
                         at::Device device, at::ScalarType type) {
  TORCH_CHECK(t.device() == device, op, ": ", name, " is on ", t.device(), ", expected ", device);
  TORCH_CHECK(t.is_contiguous(), op, ": ", name, " is not contiguous: strides ", t.strides());
  TORCH_CHECK(t.numel() == n, op, ": ", name, " has ", t.numel(), " elements, expected ", n);
  TORCH_CHECK(t.scalar_type() == type, op, ": ", name, " is ", t.scalar_type(), ", expected ",
              type);
}

// Checks a vector against `like`, the first vector of the op.
inline void check_vector(const char* op, const char* name, const at::Tensor& t,
                         const at::Tensor& like, at::ScalarType type = at::kFloat) {
  check_vector(op, name, t, like.numel(), like.device(), type);
}

// An input vector. It may be `written` itself, but must not partially overlap it.
template <typename T = float>
const T* input(const char* op, const char* name, const at::Tensor& t, const at::Tensor& written,
               at::ScalarType type = at::kFloat) {
  check_vector(op, name, t, written, type);
  at::assert_no_partial_overlap(written, t);
  return static_cast<const T*>(t.const_data_ptr());
}

inline const float* input(const char* op, const char* name, const std::optional<at::Tensor>& t,
                          const at::Tensor& written) {
  return t.has_value() ? input(op, name, *t, written) : nullptr;
}

// An output vector that is already checked. The version counter tells autograd about the in-place
// change; torch increments it by itself only for ops that return the changed tensor.
template <typename T>
T* output(const at::Tensor& t) {
  t.unsafeGetTensorImpl()->bump_version();
  return t.mutable_data_ptr<T>();
}

}  // namespace fededge
