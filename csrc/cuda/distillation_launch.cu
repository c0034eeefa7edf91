#include "kernels/distillation.h"

#include "cuda/row_launch.cuh"

namespace fededge::cuda {

FEDEDGE_LAUNCH(EachRow, Distillation);

}  // namespace fededge::cuda
