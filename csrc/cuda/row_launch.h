// Launches a row kernel. The .cu files instantiate it; they include no torch headers.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/grid.h"

namespace fededge::cuda {

// Way is EachRow or EachClass. `scratch` has plan_of(job).scratch bytes.
template <class Way, class Kernel>
void launch(const RowJob<typename Kernel::Real>& job, const Kernel& kernel, void* scratch,
            cudaStream_t stream);

}  // namespace fededge::cuda
