// Sums of models that lie in plain buffers, as NumPy and Python have them.
#pragma once

#include <pybind11/pybind11.h>

namespace fededge {

void add_buffers(pybind11::module_& m);

}  // namespace fededge
