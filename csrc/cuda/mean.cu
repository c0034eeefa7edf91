#include "kernels/mean.h"

#include "cuda/rows.cuh"

namespace fededge::cuda {

FEDEDGE_LAUNCH(EachRow, Mean);

}  // namespace fededge::cuda
