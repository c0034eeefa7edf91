// How the threads of a block that compute one row together tell each other numbers.
#pragma once

#include "kernels/host_device.h"

namespace fededge {

// The exchange of StridedLanes (lanes.h) for all threads of a block, warp after warp.
//
// Thread is one of them, on a device or in the tests that play one:
//
//   number(), threads()   its number in the block, and how many there are, a power of two
//   warp()                how many of them are a warp, a power of two
//   shuffle(x, mask)      the x of the thread of its warp whose number differs in these bits
//   barrier()             waits for all threads of the block
//   slot<T>(i)            the i-th of threads() numbers in memory that they share
template <class Thread>
struct BlockExchange {
  Thread thread;

  FEDEDGE_HD int lane() const { return thread.number(); }
  FEDEDGE_HD int width() const { return thread.threads(); }

  template <typename T>
  FEDEDGE_HD T swap(T x, int mask) const {
    if (mask < thread.warp()) return thread.shuffle(x, mask);
    thread.barrier();  // until all have read what the swap before this one left
    thread.template slot<T>(lane()) = x;
    thread.barrier();
    return thread.template slot<T>(lane() ^ mask);
  }
};

}  // namespace fededge
