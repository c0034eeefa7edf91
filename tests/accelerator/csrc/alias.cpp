#include "alias.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "arena.h"
#include "ledger.h"

namespace emulated {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void shape_like(const at::Tensor& t, const at::Tensor& like) {
  t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                 like.storage_offset());
}

at::Tensor over(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                            c10::DispatchKeySet(key), like.dtype());
  shape_like(out, like);
  return out;
}

c10::Storage alias_of(const c10::Storage& storage) {
  const auto drop = [](void* kept) { delete static_cast<c10::Storage*>(kept); };
  return {c10::Storage::use_byte_size_t(), storage.nbytes(),
          c10::DataPtr(Arena::get().host(storage.data()), new c10::Storage(storage), drop,
                       c10::Device(c10::kCPU)),
          c10::GetCPUAllocator(), true};
}

// The device tensor's memory becomes a copy of what the op put on the CPU.
void take_storage(const at::Tensor& t, const c10::Storage& from) {
  c10::StorageImpl& to = *t.storage().unsafeGetStorageImpl();
  c10::DataPtr data = c10::GetAllocator(kDevice)->allocate(from.nbytes());
  if (from.nbytes() > 0) std::memcpy(Arena::get().host(data.get()), from.data(), from.nbytes());
  to.set_data_ptr(std::move(data));
  to.set_nbytes(from.nbytes());
}

}  // namespace

at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type) {
  return at::detail::empty_generic(sizes, c10::GetAllocator(kDevice), kKeys, type, std::nullopt);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kDevice), kKeys, type);
}

c10::Storage Aliases::storage_of(const at::Tensor& t) const {
  for (const Pair& pair : pairs_) {
    if (pair.device.is_alias_of(t)) return pair.host.storage();
  }
  return alias_of(t.storage());
}

at::Tensor Aliases::host(const at::Tensor& t) {
  if (!t.defined()) return t;
  if (!t.is_privateuseone()) {
    TORCH_CHECK(t.is_cpu() && t.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                c10::Device(kDevice, 0), " and ", t.device(), "!");
    return t;
  }
  for (const Pair& pair : pairs_) {
    if (pair.device.is_same(t)) return pair.host;
  }
  const at::Tensor out = over(storage_of(t), c10::DispatchKey::CPU, t);
  pairs_.push_back({t, out, out.storage().data()});
  return out;
}

at::Tensor Aliases::device(const at::Tensor& result) const {
  if (!result.defined()) return result;
  for (const Pair& pair : pairs_) {
    if (pair.host.is_same(result)) return pair.device;
  }
  for (const Pair& pair : pairs_) {
    if (pair.host.is_alias_of(result)) {
      return over(pair.device.storage(), c10::DispatchKey::PrivateUse1, result);
    }
  }
  const at::Tensor dense = result.is_non_overlapping_and_dense() ? result : result.contiguous();
  at::Tensor out = empty_strided(dense.sizes(), dense.strides(), dense.scalar_type());
  if (dense.numel() > 0) {
    std::memcpy(Arena::get().host(out.data_ptr()), dense.const_data_ptr(), dense.nbytes());
  }
  return out;
}

void Aliases::take_shapes() const {
  for (const Pair& pair : pairs_) {
    const c10::Storage& now = pair.host.storage();
    if (now.data() != pair.data) take_storage(pair.device, now);
    const bool same = pair.host.sizes() == pair.device.sizes() &&
                      pair.host.strides() == pair.device.strides() &&
                      pair.host.storage_offset() == pair.device.storage_offset();
    if (!same) shape_like(pair.device, pair.host);
  }
}

}  // namespace emulated
