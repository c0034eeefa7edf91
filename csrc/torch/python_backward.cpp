// loss.backward() and torch.autograd.grad() that enter the autograd engine from C++. torch's Python
// code around the engine takes twice as long as the engine does for a small loss.
//
// This file uses private torch headers. It stays because a whole local step is more than 3 % faster
// with it (docs/kernels.md has the figures).
#include "torch/python_backward.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ScalarOps.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/python_variable.h>

namespace fededge {
namespace {

using at::Tensor;

// True for a CPU tensor without torch function modes, tracing or subclasses. torch's own Python
// code serves all others.
bool is_plain(PyObject* loss) {
  if (!THPVariable_CheckExact(loss) || at::impl::torch_function_mode_enabled()) return false;
  const Tensor& value = THPVariable_Unpack(loss);
  return value.device().is_cpu() && !at::isTensorSubclassLike(value);
}

// The initial gradient, 1. A new tensor each time, because a hook may change it in place.
Tensor one_like(const Tensor& loss) {
  if (loss.dim() > 0) return at::ones_like(loss);
  return at::detail::scalar_tensor_static(1, loss.scalar_type(), at::kCPU);
}

PyObject* backward(PyObject*, PyObject* loss) {
  HANDLE_TH_ERRORS
  if (!is_plain(loss)) return PyObject_CallMethod(loss, "backward", nullptr);
  const Tensor root = THPVariable_Unpack(loss);
  {
    // The engine takes the GIL itself for nodes that are written in Python.
    const pybind11::gil_scoped_release unlocked;
    torch::autograd::backward({root}, {one_like(root)});
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* general_gradient() {
  pybind11::object found = pybind11::module_::import("fededge.ops.reference").attr("gradient");
  return found.release().ptr();
}

PyObject* gradient(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2 || !is_plain(given[0]) || !is_plain(given[1])) {
    static PyObject* const general = general_gradient();
    return PyObject_Vectorcall(general, given, count, nullptr);
  }
  const Tensor root = THPVariable_Unpack(given[0]), by = THPVariable_Unpack(given[1]);
  Tensor found;
  {
    const pybind11::gil_scoped_release unlocked;
    found = torch::autograd::grad({root}, {by}, {one_like(root)}, std::nullopt, false, true)[0];
    if (!found.defined()) found = at::zeros_like(by);
  }
  return THPVariable_Wrap(found);
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"backward", &backward, METH_O, nullptr},
    {"gradient", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&gradient)),
     METH_FASTCALL, nullptr},
    {}};

}  // namespace

void add_python_backward(pybind11::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw pybind11::error_already_set();
}

}  // namespace fededge
