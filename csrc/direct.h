// The ops as functions of the Python module, which cost less to call than those of torch.ops.
#pragma once

#include <pybind11/pybind11.h>

namespace fededge {

void add_direct(pybind11::module_& m);

}  // namespace fededge
