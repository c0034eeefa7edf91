// Converts tensors to the matrices of a row kernel, with all bounds checks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <optional>

#include "kernels/lanes.h"

namespace fededge {

inline void check_labellings(const char* op, at::TensorList labels, at::ArrayRef<double> shares) {
  TORCH_CHECK_VALUE(labels.size() <= 2 && labels.size() == shares.size(), op, ": there are ",
                    labels.size(), " labellings and ", shares.size(),
                    " shares; there may be two, with a share each");
}

// The logits of an op and the tensors beside them, converted to the dtype that it computes in. The
// object owns the converted copies.
class Rows {
 public:
  Rows(const char* op, const at::Tensor& z)
      : op_(op),
        type_(z.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
        device_(z.device()) {
    TORCH_CHECK_VALUE(z.dim() == 2, op_, ": the logits have shape ", z.sizes(),
                      ", they must be [rows, classes]");
    TORCH_CHECK_TYPE(z.is_floating_point(), op_, ": the logits are ", z.scalar_type(),
                     ", they must be floating point numbers");
    TORCH_CHECK_VALUE(z.size(1) > 0 && z.size(1) < (int64_t(1) << 30), op_, ": the logits have ",
                      z.size(1), " classes");
    rows = z.size(0);
    columns = z.size(1);
  }

  int64_t rows;
  int64_t columns;

  bool wide() const { return type_ == at::kDouble; }

  // An uninitialised gradient of the logits' shape, or two of them.
  template <class Device>
  at::Tensor gradient(bool two = false) const {
    const std::array<int64_t, 3> sizes{2, rows, columns};
    return Device::empty(at::IntArrayRef(sizes).slice(two ? 0 : 1), type_, device_);
  }

  // A matrix with one row per row of the logits.
  template <typename T>
  Matrix<const T> matrix(const char* name, const at::Tensor& t) {
    check(name, t, t.dim() == 2 && t.size(0) == rows);
    const at::Tensor& held = dense(t);
    return {held.const_data_ptr<T>(), held.stride(0)};
  }

  template <typename T>
  Matrix<const T> matrix(const char* name, const std::optional<at::Tensor>& t) {
    return t.has_value() ? matrix<T>(name, *t) : Matrix<const T>{};
  }

  // One row that all rows share.
  template <typename T>
  Matrix<const T> vector(const char* name, const std::optional<at::Tensor>& t) {
    if (!t.has_value()) return {};
    check(name, *t, t->dim() == 1);
    return {dense(*t).const_data_ptr<T>(), 0};
  }

  // One row that all rows share, or one row per label.
  template <typename T>
  Matrix<const T> table(const char* name, const std::optional<at::Tensor>& t) {
    if (!t.has_value() || t->dim() == 1) return vector<T>(name, t);
    check(name, *t, t->dim() == 2 && t->size(0) == columns);
    const at::Tensor& held = dense(*t);
    return {held.const_data_ptr<T>(), held.stride(0)};
  }

  // Labels on a GPU are checked by the kernel: reading them here would synchronise with the device.
  const int64_t* labels(const at::Tensor& y) {
    TORCH_CHECK_VALUE(y.dim() == 1 && y.size(0) == rows, op_, ": the labels have shape ", y.sizes(),
                      " but there are ", rows, " rows of logits");
    TORCH_CHECK_TYPE(y.scalar_type() == at::kLong || y.scalar_type() == at::kInt, op_,
                     ": the labels are ", y.scalar_type(), ", they must be int64 or int32");
    beside("the labels", y);
    const bool as_it_is = y.scalar_type() == at::kLong && y.is_contiguous();
    alive_.push_back(as_it_is ? y : y.to(at::kLong).contiguous());
    const int64_t* found = alive_.back().const_data_ptr<int64_t>();
    if (!device_.is_cpu()) return found;
    // For a valid label, neither y nor last - y has the sign bit set. This test is vectorised on
    // every processor; comparisons of 64-bit integers are not.
    const auto last = static_cast<uint64_t>(columns - 1);
    uint64_t signs = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const auto y = static_cast<uint64_t>(found[i]);
      signs |= y | (last - y);
    }
    if (signs >> 63 != 0) refuse(found);
    return found;
  }

 private:
  const char* op_;
  at::ScalarType type_;
  at::Device device_;
  c10::SmallVector<at::Tensor, 8> alive_;

  void beside(const char* name, const at::Tensor& t) const {
    TORCH_CHECK_VALUE(t.device() == device_, op_, ": ", name, " is on ", t.device(),
                      ", but the logits are on ", device_);
  }

  void check(const char* name, const at::Tensor& t, bool fits) const {
    beside(name, t);
    TORCH_CHECK_VALUE(fits && t.size(-1) == columns, op_, ": ", name, " has shape ", t.sizes(),
                      ", which does not fit logits of shape [", rows, ", ", columns, "]");
  }

  const at::Tensor& dense(const at::Tensor& t) {
    const bool as_it_is = t.scalar_type() == type_ && (columns == 1 || t.stride(-1) == 1);
    alive_.push_back(as_it_is ? t : t.to(type_).contiguous());
    return alive_.back();
  }

  [[noreturn]] void refuse(const int64_t* y) const {
    int64_t i = 0;
    while (y[i] >= 0 && y[i] < columns) ++i;
    TORCH_CHECK_INDEX(false, op_, ": label ", y[i], " of row ", i, " is not one of ", columns,
                      " classes");
  }
};

}  // namespace fededge
