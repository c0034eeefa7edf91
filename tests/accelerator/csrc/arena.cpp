#include "arena.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ledger.h"

namespace emulated {
namespace {

constexpr size_t kCapacity = size_t{16} << 30;  // addresses only: pages appear when they are used
constexpr size_t kGrain = 512;                  // as CUDA rounds
constexpr int kPoison = 0xff;                   // NaN, or a label out of range

double mebibytes(size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void* map(void* where, int file, int flags, int more) {
  void* const found = mmap(where, kCapacity, flags, MAP_SHARED | MAP_NORESERVE | more, file, 0);
  TORCH_CHECK(found != MAP_FAILED, "emulated: mmap failed: ", std::strerror(errno));
  return found;
}

}  // namespace

Arena& Arena::get() {
  static Arena* const arena = new Arena();  // tensors may outlive static objects
  return *arena;
}

Arena::Arena() : limit_(kCapacity) {
  const int file = memfd_create("emulated device", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ftruncate(file, kCapacity) == 0,
              "emulated: no memory for the device: ", std::strerror(errno));
  void* const both =
      mmap(nullptr, 2 * kCapacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(both != MAP_FAILED, "emulated: mmap failed: ", std::strerror(errno));
  base_ = static_cast<char*>(both);
  map(base_, file, PROT_NONE, MAP_FIXED);
  map(base_ + kCapacity, file, PROT_READ | PROT_WRITE, MAP_FIXED);
  close(file);
}

void* Arena::allocate(size_t bytes) {
  count_allocation();
  const size_t size = std::max(kGrain, (bytes + kGrain - 1) / kGrain * kGrain);
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK_WITH(OutOfMemoryError, used_ + size <= limit_,
                   "emulated out of memory. Tried to allocate ", mebibytes(size),
                   " MiB. The device has a total capacity of ", mebibytes(limit_), " MiB of which ",
                   mebibytes(limit_ > used_ ? limit_ - used_ : 0), " MiB is free.");
  char* const found = base_ + take(size);
  used_ += size;
  peak_ = std::max(peak_, used_);
  std::memset(host(found), kPoison, size);
  return found;
}

// The smallest free block that is large enough, or new memory.
size_t Arena::take(size_t size) {
  const auto found = free_size_.lower_bound({size, 0});
  size_t offset = end_;
  if (found == free_size_.end()) {
    TORCH_CHECK_WITH(OutOfMemoryError, end_ + size <= kCapacity, "emulated: memory is fragmented");
    end_ += size;
  } else {
    const size_t whole = found->first;
    offset = found->second;
    free_.erase(offset);
    free_size_.erase(found);
    if (whole > size) {
      free_.emplace(offset + size, whole - size);
      free_size_.emplace(whole - size, offset + size);
    }
  }
  taken_.emplace(offset, size);
  return offset;
}

void Arena::release(void* device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = taken_.find(static_cast<char*>(device) - base_);
  size_t offset = found->first, size = found->second;
  taken_.erase(found);
  used_ -= size;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    free_size_.erase({next->second, next->first});
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      free_size_.erase({before->second, before->first});
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  free_.emplace(offset, size);
  free_size_.emplace(size, offset);
}

bool Arena::owns(const void* device) const { return device >= base_ && device < base_ + kCapacity; }

void* Arena::host(const void* device) const {
  if (device == nullptr) return nullptr;
  TORCH_INTERNAL_ASSERT(owns(device), "not an address of the emulated device");
  return const_cast<char*>(static_cast<const char*>(device)) + kCapacity;
}

void Arena::limit(size_t bytes) { limit_ = std::min(bytes, kCapacity); }

void Arena::protect(int flags) const {
  if (end_ == 0) return;
  TORCH_CHECK(mprotect(base_, end_, flags) == 0, "emulated: mprotect: ", std::strerror(errno));
}

Arena::Open::Open() {
  Arena& arena = get();
  const std::lock_guard<std::mutex> lock(arena.mutex_);
  ++arena.open_;
  arena.protect(PROT_READ | PROT_WRITE);  // each time: there may be more memory than at the last
}

Arena::Open::~Open() {
  Arena& arena = get();
  const std::lock_guard<std::mutex> lock(arena.mutex_);
  if (--arena.open_ == 0) arena.protect(PROT_NONE);
}

namespace {

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::DeviceType::PrivateUse1, 0);
    if (bytes == 0) return {nullptr, device};
    void* const found = Arena::get().allocate(bytes);
    return {found, found, &release, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    count_launch();
    std::memcpy(Arena::get().host(to), Arena::get().host(from), bytes);
  }

 private:
  static void release(void* device) { Arena::get().release(device); }
};

DeviceAllocator device_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &device_allocator);

}  // namespace
}  // namespace emulated
