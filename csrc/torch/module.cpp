// The Python module fededge._C: build facts, the SIMD level, and the functions of
// python_functions.cpp and python_backward.cpp. Importing it runs the TORCH_LIBRARY blocks that
// register the ops.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/version.h>

#include <string>
#include <vector>

#include "cpu/parallel_spans.h"
#include "cpu/simd.h"
#include "torch/python_backward.h"
#include "torch/python_functions.h"

namespace {

namespace py = pybind11;
using fededge::cpu::Simd;
using fededge::cpu::simd_name;

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "gcc " __VERSION__;
#endif

#if defined(_OPENMP)
constexpr bool kOpenMp = true;
#else
constexpr bool kOpenMp = false;
#endif

std::vector<std::string> level_names() {
  std::vector<std::string> names;
  for (const Simd level : fededge::cpu::simd_levels()) names.push_back(simd_name(level));
  return names;
}

py::dict facts() {
  py::dict out;
  out["compiler"] = kCompiler;
  out["torch"] = TORCH_VERSION;
  out["flags"] = FEDEDGE_CXX_FLAGS;
  out["openmp"] = kOpenMp;
  out["grain"] = fededge::cpu::kGrain;
  out["simd"] = simd_name(fededge::cpu::simd_level());
  out["simd_levels"] = level_names();
  return out;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "FedEdge's compiled kernels: importing it registers torch.ops.fededge.";
  m.def("facts", &facts, "How the module was built and which instruction set it uses.");
  m.def("limit_simd", &fededge::cpu::limit_simd, py::arg("level"),
        "Use this instruction set, one of facts()['simd_levels'], from now on.");
  fededge::add_python_functions(m);
  fededge::add_python_backward(m);
}
