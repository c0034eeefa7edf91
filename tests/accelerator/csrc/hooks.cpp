// How torch knows the device: guard, streams, events, generators and pinned host memory.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "alias.h"
#include "arena.h"
#include "generator.h"
#include "pending.h"

namespace emulated {
namespace {

const c10::Device kOnly(kDevice, 0);

// Ops run when they are called: streams are numbers, and an event has happened when one looks.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static thread_local c10::StreamId stream;

  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    setDevice(device);
    return kOnly;
  }
  c10::Device getDevice() const override { return kOnly; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() <= 0, "emulated error: invalid device ordinal ",
                static_cast<int>(device.index()));
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::UNSAFE, kOnly, stream);
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, kOnly);
  }
  c10::Stream getNewStream(c10::Device, int = 0) const override {
    static std::atomic<c10::StreamId> last{0};
    return c10::Stream(c10::Stream::UNSAFE, kOnly, ++last);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream before = getStream(kOnly);
    stream = to.id();
    return before;
  }

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new char;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<char*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    finish_copies();
    return true;
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 0; }

  void synchronizeEvent(void*) const override { synchronise(); }
  void synchronizeStream(const c10::Stream&) const override { synchronise(); }
  void synchronizeDevice(c10::DeviceIndex) const override { synchronise(); }
};

thread_local c10::StreamId Guard::stream = 0;

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Host memory that a copy need not wait for.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const size_t size = (bytes + 63) / 64 * 64;
    void* const found = bytes == 0 ? nullptr : std::aligned_alloc(64, size);
    TORCH_CHECK(bytes == 0 || found != nullptr, "emulated: no pinned memory");
    if (found != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex());
      sizes()[found] = bytes;
    }
    return {found, found, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static bool owns(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex());
    auto after = sizes().upper_bound(address);
    if (after == sizes().begin()) return false;
    --after;
    return address < static_cast<const char*>(after->first) + after->second;
  }

 private:
  static void release(void* memory) {
    if (memory == nullptr) return;
    {
      const std::lock_guard<std::mutex> lock(mutex());
      sizes().erase(memory);
    }
    std::free(memory);
  }

  static std::mutex& mutex() {
    static auto* const one = new std::mutex();  // tensors may outlive static objects
    return *one;
  }

  static std::map<const void*, size_t>& sizes() {
    static auto* const all = new std::map<const void*, size_t>();
    return *all;
  }
};

PinnedAllocator pinned_allocator;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    Guard().setDevice(c10::Device(kDevice, index));
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    setCurrentDevice(index);
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }
  c10::Device getDeviceFromPtr(void*) const override { return kOnly; }
  bool isPinnedPtr(const void* address) const override { return PinnedAllocator::owns(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr data = c10::GetAllocator(kDevice)->allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) c10::GetAllocator(kDevice)->copy_data(data.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace
}  // namespace emulated
