// The Python functions backward() and gradient(), which enter the autograd engine from C++.
#pragma once

#include <pybind11/pybind11.h>

namespace fededge {

void add_python_backward(pybind11::module_& m);

}  // namespace fededge
