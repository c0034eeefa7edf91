// Allocation, copies and storages: the ops that a backend must have of its own.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "alias.h"
#include "arena.h"
#include "ledger.h"
#include "pending.h"

namespace emulated {
namespace {

using at::Tensor;
template <typename T>
using Maybe = std::optional<T>;

Tensor empty_memory_format(at::IntArrayRef sizes, Maybe<at::ScalarType> type, Maybe<at::Layout>,
                           Maybe<at::Device> device, Maybe<bool> pinned,
                           Maybe<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(!device || device->index() <= 0, "emulated error: invalid device ordinal");
  return at::detail::empty_generic(sizes, c10::GetAllocator(kDevice),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

Tensor empty_with_strides(at::IntArrayRef sizes, at::IntArrayRef strides,
                          Maybe<at::ScalarType> type, Maybe<at::Layout>, Maybe<at::Device>,
                          Maybe<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  return empty_strided(sizes, strides, c10::dtype_or_default(type));
}

bool is_pinned(const Tensor& t) {
  return at::detail::getPrivateUse1Hooks().isPinnedPtr(t.storage().data());
}

// Counts a copy. It waits for the device unless it need not and the host's memory is pinned.
bool count_copy(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (!from.is_cpu() && !to.is_cpu()) {
    count_launch();
    return false;
  }
  (from.is_cpu() ? count_copy_to_device : count_copy_to_host)(to.nbytes());
  const bool waits = !non_blocking || !is_pinned(from.is_cpu() ? from : to);
  if (waits) synchronise();
  return waits;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  refuse_fork();
  if (to.numel() == 0) return to;
  const at::AutoDispatchBelowADInplaceOrView below;
  const bool waits = count_copy(from, to, non_blocking);
  Aliases aliases;
  if (to.is_cpu() && !waits) {
    Tensor values = at::empty(to.sizes(), to.options());
    fill_later(to, values.copy_(aliases.host(from).expand_as(to)));
    return to;
  }
  (to.is_cpu() ? to : aliases.host(to)).copy_(from.is_cpu() ? from : aliases.host(from));
  if (from.is_cpu() && !waits) keep_until_later(from);
  return to;
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef sizes, Maybe<at::MemoryFormat> format) {
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_sizes_contiguous(sizes);
  const size_t needed = at::detail::computeStorageNbytesContiguous(sizes, self.dtype().itemsize(),
                                                                   self.storage_offset());
  if (self.numel() > 0 && needed > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), needed);
  }
  if (format.has_value()) impl.empty_tensor_restride(*format);
  return self;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const Tensor& t) {
  count_copy_to_host(t.dtype().itemsize());
  synchronise();
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::_local_scalar_dense(Aliases().host(t));
}

Tensor& set_storage_at(Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef sizes,
                       at::IntArrayRef strides) {
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(std::move(storage));
  if (strides.empty() && !sizes.empty()) {
    impl.set_storage_offset(offset);
    impl.set_sizes_contiguous(sizes);
  } else {
    impl.set_sizes_and_strides(sizes, strides, offset);
  }
  const size_t needed = at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.dtype().itemsize(), self.storage_offset());
  if (self.numel() > 0 && needed > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), needed);
  }
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage storage) {
  const int64_t n = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_storage_at(self, std::move(storage), 0, {n}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& like) {
  return set_storage_at(self, like.storage(), like.storage_offset(), like.sizes(), like.strides());
}

Tensor& set_nothing(Tensor& self) {
  return set_storage_at(self, empty({0}, self.scalar_type()).storage(), 0, {0}, {1});
}

void record_stream(Tensor&, c10::Stream) {}  // memory is never reused before its ops have run

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty_memory_format));
  m.impl("empty_strided", TORCH_FN(empty_with_strides));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_at));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("record_stream", TORCH_FN(record_stream));
}

}  // namespace
}  // namespace emulated
