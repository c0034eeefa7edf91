#include "cuda/rows.cuh"
#include "kernels/mean.h"

namespace fededge::cuda {

template void launch_rows(const RowJob<double>&, const Mean<float>&, void*, cudaStream_t);
template void launch_rows(const RowJob<double>&, const Mean<double>&, void*, cudaStream_t);

}  // namespace fededge::cuda
