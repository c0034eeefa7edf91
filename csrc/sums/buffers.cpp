// The module fededge._sums: sums of models in plain buffers (NumPy, array.array, memoryview).
//
// It does not link torch, so that the coordinator needs none. It uses one thread: the loops are
// bound by memory bandwidth, and the coordinator serves its devices meanwhile.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/simd.h"
#include "cpu/span_loops.h"
#include "kernels/accumulate.h"

namespace fededge {
namespace {

namespace py = pybind11;

// A flat, contiguous buffer with a checked number format.
class Flat {
 public:
  Flat(const char* name, const py::buffer& buffer, const std::string& kinds, bool writable = false)
      : name_(name), info_(buffer.request(writable)) {
    const bool dense = info_.ndim == 1 && (info_.size < 2 || info_.strides[0] == info_.itemsize);
    if (!dense) throw py::value_error(name_ + " must be a flat vector without gaps");
    if (info_.format.size() != 1 || kinds.find(kind()) == std::string::npos) {
      throw py::type_error(name_ + " has numbers of kind '" + info_.format +
                           "', expected one of '" + kinds + "' (see Python's struct module)");
    }
  }

  char kind() const { return info_.format[0]; }
  int64_t size() const { return info_.size; }

  template <typename T>
  T* data() const {
    return static_cast<T*>(info_.ptr);
  }

  void expect(int64_t size) const {
    if (size != this->size()) {
      throw py::value_error(name_ + " has " + std::to_string(this->size()) +
                            " elements, expected " + std::to_string(size));
    }
  }

  // Throws if this output buffer overlaps an input.
  void apart(const Flat& read) const {
    const char* begin = data<char>();
    const char* other = read.data<char>();
    const bool across = begin < other + read.bytes() && other < begin + bytes();
    if (across) throw py::value_error(name_ + " shares memory with " + read.name_);
  }

 private:
  std::string name_;
  py::buffer_info info_;

  int64_t bytes() const { return info_.size * info_.itemsize; }
};

template <class Span>
void unlocked(int64_t n, const Span& span) {
  const py::gil_scoped_release release;
  if (n > 0) cpu::run(span, 0, n);
}

template <typename Acc>
void add_to(const Flat& acc, const Flat& x, double weight) {
  const auto w = static_cast<Acc>(weight);
  if (x.kind() == 'e') {
    unlocked(acc.size(), Accumulate<Acc, Half>{acc.data<Acc>(), x.data<Half>(), w});
  } else {
    unlocked(acc.size(), Accumulate<Acc, float>{acc.data<Acc>(), x.data<float>(), w});
  }
}

void accumulate_buffer(const py::buffer& acc, const py::buffer& x, double weight) {
  const Flat sum("acc", acc, "fd", true);
  const Flat one("x", x, "fe");
  one.expect(sum.size());
  sum.apart(one);
  if (sum.kind() == 'd') {
    add_to<double>(sum, one, weight);
  } else {
    add_to<float>(sum, one, weight);
  }
}

std::vector<std::string> simd_levels() {
  std::vector<std::string> names;
  for (const cpu::Simd level : cpu::simd_levels()) names.push_back(cpu::simd_name(level));
  return names;
}

}  // namespace

PYBIND11_MODULE(_sums, m) {
  using py::arg;
  m.doc() = "FedEdge's sums of models in plain buffers.";
  m.def(
      "simd_level", [] { return cpu::simd_name(cpu::simd_level()); },
      "The instruction set in use.");
  m.def("simd_levels", &simd_levels, "Those that this processor has, lowest first.");
  m.def("limit_simd", &cpu::limit_simd, arg("level"), "Use this one of them from now on.");
  m.def("accumulate_buffer", &accumulate_buffer, arg("acc"), arg("x"), arg("weight"),
        "acc += weight * x: float32 or float64, of float32 or float16.");
}

}  // namespace fededge
