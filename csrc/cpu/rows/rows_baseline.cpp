#include "cpu/rows/row_loops.h"

namespace fededge::cpu {

FEDEDGE_ROWS(rows_baseline, 16)

}  // namespace fededge::cpu
