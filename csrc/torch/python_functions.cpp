// The ops as Python functions (METH_FASTCALL) that unpack arguments of known types.
//
// torch.ops parses the schema's argument types at every call, which takes longer than a small loss.
// Calls with anything but plain tensors and numbers, or under a torch function mode, go to
// torch.ops.
//
// This file uses private torch headers. It stays because a whole local step is more than 3 % faster
// with it (docs/kernels.md has the figures).
#include "torch/python_functions.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <string>
#include <tuple>

namespace fededge {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// One argument: read() returns false if the Python object has another type, get() is its value.
template <typename T>
struct Argument;

template <>
struct Argument<const Tensor&> {
  const Tensor* value;

  bool read(PyObject* given) {
    if (!THPVariable_CheckExact(given)) return false;
    value = &THPVariable_Unpack(given);
    return true;
  }
  const Tensor& get() const { return *value; }
};

template <>
struct Argument<const OptionalTensor&> {
  OptionalTensor value;

  bool read(PyObject* given) {
    if (given == Py_None) return true;
    if (!THPVariable_CheckExact(given)) return false;
    value = THPVariable_Unpack(given);
    return true;
  }
  const OptionalTensor& get() const { return value; }
};

bool read_number(PyObject* given, double& value) {
  if (!PyFloat_CheckExact(given) && !PyLong_CheckExact(given)) return false;
  value = PyFloat_AsDouble(given);
  if (!PyErr_Occurred()) return true;
  PyErr_Clear();  // the integer is too large: torch.ops has the better message
  return false;
}

template <>
struct Argument<double> {
  double value;

  bool read(PyObject* given) { return read_number(given, value); }
  double get() const { return value; }
};

template <>
struct Argument<int64_t> {
  int64_t value;

  bool read(PyObject* given) {
    if (!PyLong_CheckExact(given)) return false;
    int overflow = 0;
    value = PyLong_AsLongLongAndOverflow(given, &overflow);
    return overflow == 0;
  }
  int64_t get() const { return value; }
};

// Calls `item` for each element of a list or tuple until it returns false.
template <class Item>
bool read_items(PyObject* given, const Item& item) {
  if (!PyTuple_CheckExact(given) && !PyList_CheckExact(given)) return false;
  PyObject** const items = PySequence_Fast_ITEMS(given);
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!item(items[i])) return false;
  }
  return true;
}

template <>
struct Argument<at::TensorList> {
  c10::SmallVector<Tensor, 2> value;

  bool read(PyObject* given) {
    return read_items(given, [&](PyObject* item) {
      const bool plain = THPVariable_CheckExact(item);
      if (plain) value.push_back(THPVariable_Unpack(item));
      return plain;
    });
  }
  at::TensorList get() const { return value; }
};

template <>
struct Argument<at::ArrayRef<double>> {
  c10::SmallVector<double, 2> value;

  bool read(PyObject* given) {
    return read_items(given, [&](PyObject* item) {
      value.push_back(0);
      return read_number(item, value.back());
    });
  }
  at::ArrayRef<double> get() const { return value; }
};

// Releases the GIL and runs an op.
template <class Result, class Run>
PyObject* run(const Run& op) {
  if constexpr (std::is_void_v<Result>) {
    {
      const pybind11::gil_scoped_release unlocked;
      op();
    }
    Py_RETURN_NONE;
  } else {
    std::optional<Result> result;
    {
      const pybind11::gil_scoped_release unlocked;
      result = op();
    }
    return THPVariable_Wrap(*std::move(result));
  }
}

PyObject* torch_ops(const char* name) {
  pybind11::object found =
      pybind11::module_::import("torch").attr("ops").attr("fededge").attr(name);
  return found.release().ptr();
}

template <const char* kName, class Signature>
struct Op;

template <const char* kName, class Result, class... Arguments>
struct Op<kName, Result(Arguments...)> {
  static PyObject* call(PyObject*, PyObject* const* given, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow((std::string("fededge::") + kName).c_str(), "")
                               .template typed<Result(Arguments...)>();
    std::tuple<Argument<Arguments>...> read;
    const bool plain = count == sizeof...(Arguments) && !at::impl::torch_function_mode_enabled() &&
                       std::apply(
                           [&](auto&... one) {
                             size_t i = 0;
                             return (one.read(given[i++]) && ...);
                           },
                           read);
    if (!plain) {
      static PyObject* const general = torch_ops(kName);
      return PyObject_Vectorcall(general, given, count, nullptr);
    }
    return std::apply(
        [](const auto&... one) { return run<Result>([&] { return op.call(one.get()...); }); },
        read);
    END_HANDLE_TH_ERRORS
  }
};

template <const char* kName, class Signature>
PyMethodDef method() {
  const auto call = reinterpret_cast<void (*)()>(&Op<kName, Signature>::call);
  return {kName, reinterpret_cast<PyCFunction>(call), METH_FASTCALL, nullptr};
}

using Numbers = at::ArrayRef<double>;
using at::TensorList;

constexpr char kAlaStep[] = "ala_step_";
constexpr char kDistillation[] = "distillation";
constexpr char kEma[] = "ema_";
constexpr char kLabelLoss[] = "label_loss";
constexpr char kPooledConvolution[] = "pooled_convolution";
constexpr char kProbabilitySums[] = "probability_sums_";
constexpr char kSgdStep[] = "sgd_step_";

PyMethodDef methods[] = {
    method<kAlaStep, void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          double)>(),
    method<kDistillation, Tensor(const Tensor&, const Tensor&, double, const OptionalTensor&)>(),
    method<kEma, void(const Tensor&, const Tensor&, double)>(),
    method<kLabelLoss,
           Tensor(const Tensor&, TensorList, Numbers, double, double, double, const OptionalTensor&,
                  const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                  const OptionalTensor&, const OptionalTensor&)>(),
    method<kPooledConvolution,
           Tensor(const Tensor&, const Tensor&, const OptionalTensor&, int64_t)>(),
    method<kProbabilitySums,
           void(const Tensor&, const Tensor&, const Tensor&, TensorList, Numbers)>(),
    method<kSgdStep,
           void(const Tensor&, const Tensor&, const OptionalTensor&, double, double, double, double,
                const OptionalTensor&, const OptionalTensor&, const OptionalTensor&)>(),
    {}};

}  // namespace

void add_python_functions(pybind11::module_& m) {
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw pybind11::error_already_set();
}

}  // namespace fededge
