// Starts a row kernel on the device; the .cu files say for which kernels. No torch.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/grid.h"

namespace fededge::cuda {

// `scratch` has as many bytes as RowPlan::of says.
template <class Kernel>
void launch_rows(const RowJob<typename Kernel::Real>& job, const Kernel& kernel, void* scratch,
                 cudaStream_t stream);

}  // namespace fededge::cuda
