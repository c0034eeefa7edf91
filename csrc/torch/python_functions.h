// The ops as functions of the Python module, cheaper to call than torch.ops.
#pragma once

#include <pybind11/pybind11.h>

namespace fededge {

void add_python_functions(pybind11::module_& m);

}  // namespace fededge
