#include "kernels/mean.h"

#include "cuda/row_launch.cuh"

namespace fededge::cuda {

FEDEDGE_LAUNCH(EachRow, Mean);

}  // namespace fededge::cuda
