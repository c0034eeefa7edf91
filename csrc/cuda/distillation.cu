#include "kernels/distillation.h"

#include "cuda/rows.cuh"

namespace fededge::cuda {

FEDEDGE_LAUNCH(EachRow, Distillation);

}  // namespace fededge::cuda
