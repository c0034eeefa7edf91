// The Python module fededge._cuda: importing it registers the CUDA kernels of torch.ops.fededge.
#include <cuda_runtime_api.h>
#include <pybind11/pybind11.h>
#include <torch/version.h>

#include <string>

namespace {

namespace py = pybind11;

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

py::dict facts() {
  py::dict out;
  out["torch"] = TORCH_VERSION;
  out["cuda"] = version(CUDART_VERSION);
  out["architectures"] = FEDEDGE_CUDA_ARCHITECTURES;
  return out;
}

}  // namespace

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "FedEdge's CUDA kernels: importing it registers them with torch.ops.fededge.";
  m.def("facts", &facts, "What the module was built for.");
}
