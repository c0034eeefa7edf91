// The device's memory: one range of addresses that the host cannot touch.
//
// The same pages are mapped twice. Tensors have addresses of the first mapping, which is PROT_NONE:
// whatever forgets a copy and dereferences one ends with SIGSEGV. The second mapping, at a constant
// distance, is how ops of the backend reach the memory. The fused kernels hold device addresses in
// their arguments; the first mapping is opened while they run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace emulated {

class Arena {
 public:
  static Arena& get();

  // A device address, never null. Throws c10::OutOfMemoryError beyond the limit.
  void* allocate(size_t bytes);
  void release(void* device);

  // Where an op of the backend finds the bytes of a device address; null for null.
  void* host(const void* device) const;
  bool owns(const void* device) const;

  void limit(size_t bytes);
  size_t limit() const { return limit_; }
  size_t used() const { return used_; }
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = used_; }

  // Device addresses can be dereferenced while an Open lives; for the device code of fused kernels.
  class Open {
   public:
    Open();
    ~Open();
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
  };

 private:
  Arena();
  size_t take(size_t bytes);
  void protect(int flags) const;

  char* base_;
  std::mutex mutex_;
  size_t limit_;
  size_t used_ = 0;
  size_t peak_ = 0;
  size_t end_ = 0;  // nothing beyond it was ever allocated
  int open_ = 0;
  std::map<size_t, size_t> taken_;                 // offset, size
  std::map<size_t, size_t> free_;                  // offset, size
  std::set<std::pair<size_t, size_t>> free_size_;  // size, offset
};

}  // namespace emulated
