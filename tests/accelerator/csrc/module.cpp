// The Python module of the emulated accelerator. Loading it registers the device with torch.
#include <ATen/core/Generator.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Generator.h>

#include "arena.h"
#include "generator.h"
#include "ledger.h"
#include "pending.h"

namespace {

namespace py = pybind11;

py::dict counts() {
  const emulated::Counts& now = emulated::counts();
  py::dict out;
  out["allocations"] = now.allocations.load();
  out["launches"] = now.launches.load();
  out["synchronisations"] = now.synchronisations.load();
  out["to_device"] = now.to_device.load();
  out["to_device_bytes"] = now.to_device_bytes.load();
  out["to_host"] = now.to_host.load();
  out["to_host_bytes"] = now.to_host_bytes.load();
  return out;
}

py::dict memory() {
  const emulated::Arena& arena = emulated::Arena::get();
  py::dict out;
  out["limit"] = arena.limit();
  out["used"] = arena.used();
  out["peak"] = arena.peak();
  return out;
}

void limit_memory(size_t bytes) { emulated::Arena::get().limit(bytes); }

py::object generator() {
  static PyObject* const one = THPGenerator_initDefaultGenerator(emulated::default_generator());
  return py::reinterpret_borrow<py::object>(one);
}

void reset_peak() { emulated::Arena::get().reset_peak(); }

}  // namespace

PYBIND11_MODULE(EMULATED_NAME, m) {
  m.def("counts", &counts);
  m.def("default_generator", &generator);
  m.def("memory", &memory);
  m.def("limit_memory", &limit_memory);
  m.def("reset_peak", &reset_peak);
  m.def("fail_allocation", &emulated::fail_allocation);
  m.def("fail_launch", &emulated::fail_launch);
  m.def("synchronise", &emulated::synchronise);
}
