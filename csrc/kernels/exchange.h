// Data exchange between the threads of a block that compute one row together.
#pragma once

#include "kernels/numbers/host_device.h"

namespace fededge {

// The Exchange of StridedLanes (kernels/lanes.h) for all threads of a block.
//
// Thread is a device thread, or an emulated one in the tests:
//
//   number(), threads()   its index in the block, and the size of the block, a power of two
//   warp()                the size of a warp, a power of two
//   shuffle(x, mask)      the x of thread `number() ^ mask` of the same warp
//   barrier()             waits for all threads of the block
//   slot<T>(i)            number i of threads() numbers in shared memory
template <class Thread>
struct BlockExchange {
  Thread thread;

  FEDEDGE_HD int lane() const { return thread.number(); }
  FEDEDGE_HD int width() const { return thread.threads(); }

  template <typename T>
  FEDEDGE_HD T swap(T x, int mask) const {
    if (mask < thread.warp()) return thread.shuffle(x, mask);
    thread.barrier();  // until all threads have read the slots of the previous swap
    thread.template slot<T>(lane()) = x;
    thread.barrier();
    return thread.template slot<T>(lane() ^ mask);
  }
};

}  // namespace fededge
