#include "kernels/probability_sums.h"

#include "cuda/row_launch.cuh"

namespace fededge::cuda {

FEDEDGE_LAUNCH(EachClass, ProbabilitySums);

}  // namespace fededge::cuda
