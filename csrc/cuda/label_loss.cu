#include "kernels/label_loss.h"

#include "cuda/rows.cuh"

namespace fededge::cuda {

FEDEDGE_LAUNCH(EachRow, LabelLoss);

}  // namespace fededge::cuda
