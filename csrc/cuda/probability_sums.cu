#include "kernels/probability_sums.h"

#include "cuda/rows.cuh"

namespace fededge::cuda {

FEDEDGE_LAUNCH(EachClass, ProbabilitySums);

}  // namespace fededge::cuda
