// A process's work on the device: counts, and failures that a test has ordered.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace emulated {

struct Counts {
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> launches{0};
  std::atomic<int64_t> synchronisations{0};  // the host waits until the device has nothing to do
  std::atomic<int64_t> to_device{0};
  std::atomic<int64_t> to_device_bytes{0};
  std::atomic<int64_t> to_host{0};
  std::atomic<int64_t> to_host_bytes{0};
};

Counts& counts();

// Counts an allocation or a launch, and throws if it is the one that shall fail.
void count_allocation();
void count_launch();

void count_synchronisation();
void count_copy_to_device(size_t bytes);
void count_copy_to_host(size_t bytes);

// The n-th allocation or launch from now on fails, once; 0 takes the order back.
void fail_allocation(int64_t n);
void fail_launch(int64_t n);

// Throws in a process that was forked after the device was first used, as CUDA does.
void refuse_fork();

}  // namespace emulated
