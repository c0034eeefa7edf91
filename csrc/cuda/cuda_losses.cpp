#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cuda/current_stream.h"
#include "cuda/row_launch.h"
#include "kernels/mean.h"
#include "ops/distillation_op.h"
#include "ops/label_loss_op.h"
#include "ops/probability_sums_op.h"

namespace fededge::cuda {
namespace {

constexpr int64_t kInside = RowJob<float>::kInside;

// A label out of range that a kernel found, in pinned host memory that every GPU can write. It is
// read when the next op starts, because synchronising with the kernel would cost more than the
// kernel. The loss and the gradient of that row are NaN immediately.
volatile int64_t& outside() {
  static volatile int64_t* const where = [] {
    void* memory = nullptr;
    C10_CUDA_CHECK(
        cudaHostAlloc(&memory, sizeof(int64_t), cudaHostAllocMapped | cudaHostAllocPortable));
    auto* number = static_cast<volatile int64_t*>(memory);
    *number = kInside;
    return number;
  }();
  return *where;
}

void refuse_outside() {
  const int64_t label = outside();
  if (label == kInside) return;
  outside() = kInside;
  TORCH_CHECK_INDEX(false, "fededge: an earlier call on a GPU had label ", label,
                    ", which was not one of its classes; what it gave for that row is NaN");
}

struct Cuda {
  static at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
    return at::empty(sizes, at::TensorOptions().dtype(type).device(device));
  }

  template <class Way, class Kernel>
  static void run(const RowJob<typename Kernel::Real>& job, const Kernel& kernel,
                  const at::Tensor& where) {
    const int64_t bytes = plan_of<Way, Kernel>(job).scratch;
    const at::Tensor scratch = empty({bytes}, at::kByte, where.device());
    on_device(where, [&](cudaStream_t stream) {
      launch<Way>(job, kernel, scratch.mutable_data_ptr(), stream);
    });
  }

  template <class Kernel>
  static at::Tensor mean(const Rows& rows, const Kernel& kernel, const at::Tensor& z) {
    using T = typename Kernel::Real;
    refuse_outside();
    TORCH_CHECK_VALUE(rows.rows < (int64_t{1} << 31), "there are ", rows.rows, " rows of logits");
    const auto columns = static_cast<int>(rows.columns);
    const at::Tensor results = empty({rows.rows}, c10::CppTypeToScalarType<T>::value, z.device());
    auto* each = results.mutable_data_ptr<T>();
    run<EachRow>(RowJob<T>{rows.rows, columns, each, const_cast<int64_t*>(&outside())}, kernel, z);
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
                                            const_cast<int64_t*>(&outside())};
    run<EachClass>(job, kernel, written);
  }
};

TORCH_LIBRARY_IMPL(fededge, CUDA, m) {
  m.impl("label_loss_forward", TORCH_FN(label_loss_op::label_loss<Cuda>));
  m.impl("distillation_forward", TORCH_FN(distillation_op::distillation<Cuda>));
  m.impl("probability_sums_", TORCH_FN(probability_sums_op::probability_sums_<Cuda>));
}

}  // namespace
}  // namespace fededge::cuda
