#include "kernels/label_loss.h"

#include "cuda/row_launch.cuh"

namespace fededge::cuda {

FEDEDGE_LAUNCH(EachRow, LabelLoss);

}  // namespace fededge::cuda
