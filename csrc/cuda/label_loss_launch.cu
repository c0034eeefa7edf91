#include "cuda/rows.cuh"
#include "kernels/label_loss.h"

namespace fededge::cuda {

template void launch_rows(const RowJob<float>&, const LabelLoss<float>&, void*, cudaStream_t);
template void launch_rows(const RowJob<double>&, const LabelLoss<double>&, void*, cudaStream_t);

}  // namespace fededge::cuda
