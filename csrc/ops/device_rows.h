// The row ops' Device (ops/label_loss_op.h describes it) for memory that the host cannot read.
//
// A Launcher has two static functions: launch<Way>(job, kernel, scratch, where) starts a row kernel
// on the device of the tensor `where`, and outside() is a number that host and device share.
#pragma once

#include <ATen/ops/empty.h>

#include "kernels/grid.h"
#include "kernels/mean.h"
#include "ops/logit_rows.h"

namespace fededge {

template <class Launcher>
struct DeviceRows {
  static at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
    return at::empty(sizes, at::TensorOptions().dtype(type).device(device));
  }

  template <class Kernel>
  static at::Tensor mean(const Rows& rows, const Kernel& kernel, const at::Tensor& z) {
    using T = typename Kernel::Real;
    refuse_outside();
    TORCH_CHECK_VALUE(rows.rows < (int64_t{1} << 31), "there are ", rows.rows, " rows of logits");
    const auto columns = static_cast<int>(rows.columns);
    const at::Tensor results = empty({rows.rows}, c10::CppTypeToScalarType<T>::value, z.device());
    auto* each = results.mutable_data_ptr<T>();
    run<EachRow>(RowJob<T>{rows.rows, columns, each, outside()}, kernel, z);
    const at::Tensor out = empty({}, at::kDouble, z.device());
    const RowJob<double> whole{1, static_cast<int>(rows.rows), out.mutable_data_ptr<double>(),
                               nullptr};
    run<EachRow>(whole, Mean<T>{each}, z);
    return out.to(z.scalar_type());
  }

  template <class Kernel>
  static void by_class(const Rows& rows, const Kernel& kernel, const at::Tensor& written) {
    refuse_outside();
    const RowJob<typename Kernel::Real> job{rows.rows, static_cast<int>(rows.columns), nullptr,
                                            outside()};
    run<EachClass>(job, kernel, written);
  }

 private:
  static int64_t* outside() { return const_cast<int64_t*>(&Launcher::outside()); }

  template <class Way, class Kernel>
  static void run(const RowJob<typename Kernel::Real>& job, const Kernel& kernel,
                  const at::Tensor& where) {
    const int64_t bytes = plan_of<Way, Kernel>(job).scratch;
    const at::Tensor scratch = empty({bytes}, at::kByte, where.device());
    Launcher::template launch<Way>(job, kernel, scratch.mutable_data_ptr(), where);
  }

  // A label out of range is read when the next op starts, because synchronising with the kernel
  // would cost more than the kernel. The loss and the gradient of that row are NaN immediately.
  static void refuse_outside() {
    volatile int64_t& found = Launcher::outside();
    const int64_t label = found;
    if (label == RowJob<float>::kInside) return;
    found = RowJob<float>::kInside;
    TORCH_CHECK_INDEX(false, "fededge: an earlier call on a GPU had label ", label,
                      ", which was not one of its classes; what it gave for that row is NaN");
  }
};

}  // namespace fededge
