#include <torch/library.h>

#include "cuda/current_stream.h"
#include "cuda/row_launch.h"
#include "ops/device_rows.h"
#include "ops/distillation_op.h"
#include "ops/label_loss_op.h"
#include "ops/probability_sums_op.h"

namespace fededge::cuda {
namespace {

struct Launcher {
  // In pinned host memory that every GPU can write.
  static volatile int64_t& outside() {
    static volatile int64_t* const where = [] {
      void* memory = nullptr;
      C10_CUDA_CHECK(
          cudaHostAlloc(&memory, sizeof(int64_t), cudaHostAllocMapped | cudaHostAllocPortable));
      auto* number = static_cast<volatile int64_t*>(memory);
      *number = RowJob<float>::kInside;
      return number;
    }();
    return *where;
  }

  template <class Way, class Kernel>
  static void launch(const RowJob<typename Kernel::Real>& job, const Kernel& kernel, void* scratch,
                     const at::Tensor& where) {
    on_device(where, [&](cudaStream_t stream) { cuda::launch<Way>(job, kernel, scratch, stream); });
  }
};

using Cuda = DeviceRows<Launcher>;

TORCH_LIBRARY_IMPL(fededge, CUDA, m) {
  m.impl("label_loss_forward", TORCH_FN(label_loss_op::label_loss<Cuda>));
  m.impl("distillation_forward", TORCH_FN(distillation_op::distillation<Cuda>));
  m.impl("probability_sums_", TORCH_FN(probability_sums_op::probability_sums_<Cuda>));
}

}  // namespace
}  // namespace fededge::cuda
