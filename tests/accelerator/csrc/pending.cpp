#include "pending.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "ledger.h"

namespace emulated {
namespace {

struct Copy {
  at::Tensor host;
  at::Tensor values;  // contiguous: what the host's memory shall hold, or must hold
  bool to_host;
};

constexpr size_t kMost = 256;  // a device that is so far behind has done the first of them

std::mutex mutex;

std::deque<Copy>& pending() {
  static auto* const all = new std::deque<Copy>();  // tensors must not outlive torch
  return *all;
}

// False if the host changed what the device was reading.
bool finish(const Copy& copy) {
  if (copy.to_host) {
    copy.host.copy_(copy.values);
    return true;
  }
  const at::Tensor now = copy.host.contiguous();
  return std::memcmp(now.const_data_ptr(), copy.values.const_data_ptr(), now.nbytes()) == 0;
}

void finish(const std::vector<Copy>& copies) {
  const at::AutoDispatchBelowADInplaceOrView below;
  bool kept = true;
  for (const Copy& copy : copies) kept = finish(copy) && kept;
  TORCH_CHECK(kept, "emulated: the host changed pinned memory before a copy had read it; ",
              "synchronise first, or use other memory");
}

void add(Copy copy) {
  std::vector<Copy> old;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    pending().push_back(std::move(copy));
    if (pending().size() > kMost) {
      old.push_back(pending().front());
      pending().pop_front();
    }
  }
  finish(old);
}

}  // namespace

void fill_later(const at::Tensor& to, const at::Tensor& values) {
  to.is_floating_point() ? to.fill_(std::nan("")) : to.fill_(-1);
  add({to, values, true});
}

void keep_until_later(const at::Tensor& from) {
  add({from, from.clone(at::MemoryFormat::Contiguous), false});
}

void synchronise() {
  count_synchronisation();
  finish_copies();
}

void finish_copies() {
  std::vector<Copy> all;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    all.assign(pending().begin(), pending().end());
    pending().clear();
  }
  finish(all);
}

}  // namespace emulated
