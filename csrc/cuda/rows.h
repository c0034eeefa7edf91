// Starts a row kernel on the device; the .cu files say for which kernels. No torch.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/grid.h"

namespace fededge::cuda {

// A kernel, and how its work is shared out: EachRow or EachClass. `scratch` has as many bytes as
// plan_of says.
template <class Way, class Kernel>
void launch(const RowJob<typename Kernel::Real>& job, const Kernel& kernel, void* scratch,
            cudaStream_t stream);

template <class Way, class Kernel>
RowPlan plan_of(const RowJob<typename Kernel::Real>& job) {
  return RowPlan::of(Way::groups(job), job.columns,
                     Kernel::kKept * sizeof(typename Kernel::Real));
}

}  // namespace fededge::cuda
