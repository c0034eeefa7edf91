#include "ledger.h"

#include <c10/util/Exception.h>
#include <pthread.h>

namespace emulated {
namespace {

std::atomic<int64_t> allocations_left{0};
std::atomic<int64_t> launches_left{0};
std::atomic<bool> forked{false};

// True for the call that takes the number from 1 to 0.
bool is_due(std::atomic<int64_t>& left) { return left.load() > 0 && left.fetch_sub(1) == 1; }

}  // namespace

Counts& counts() {
  static Counts all;
  return all;
}

void refuse_fork() {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  TORCH_CHECK(watched == 0, "emulated: pthread_atfork failed with code ", watched);
  TORCH_CHECK(!forked, "Cannot re-initialize the emulated device in a forked subprocess: use the ",
              "'spawn' start method");
}

void count_allocation() {
  refuse_fork();
  ++counts().allocations;
  TORCH_CHECK_WITH(OutOfMemoryError, !is_due(allocations_left),
                   "emulated out of memory: a test ordered this allocation to fail");
}

void count_launch() {
  refuse_fork();
  ++counts().launches;
  TORCH_CHECK(!is_due(launches_left), "emulated error: launch failed");
}

void count_synchronisation() { ++counts().synchronisations; }

void count_copy_to_device(size_t bytes) {
  ++counts().to_device;
  counts().to_device_bytes += static_cast<int64_t>(bytes);
}

void count_copy_to_host(size_t bytes) {
  ++counts().to_host;
  counts().to_host_bytes += static_cast<int64_t>(bytes);
}

void fail_allocation(int64_t n) { allocations_left = n; }

void fail_launch(int64_t n) { launches_left = n; }

}  // namespace emulated
