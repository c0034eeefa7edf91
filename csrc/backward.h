// A backward pass that begins in C++.
#pragma once

#include <pybind11/pybind11.h>

namespace fededge {

void add_backward(pybind11::module_& m);

}  // namespace fededge
