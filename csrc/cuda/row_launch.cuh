// Device code of the row launches, included by the .cu files that instantiate launch().
#pragma once

#include "cuda/row_launch.h"

namespace fededge::cuda {

extern __shared__ double shared_memory[];

// The Thread of kernels/exchange.h. The host compiler parses this code too, without the device
// intrinsics.
template <int kThreads>
struct DeviceThread {
  FEDEDGE_HD static constexpr int threads() { return kThreads; }
  FEDEDGE_HD static constexpr int warp() { return RowPlan::kWarp; }

#if defined(__CUDA_ARCH__)
  __device__ __forceinline__ int number() const { return threadIdx.x % kThreads; }
  __device__ __forceinline__ void barrier() const { __syncthreads(); }

  template <typename T>
  __device__ __forceinline__ T shuffle(T x, int mask) const {
    return __shfl_xor_sync(0xffffffffu, x, mask);
  }

  template <typename T>
  __device__ __forceinline__ T& slot(int i) const {
    return reinterpret_cast<T*>(shared_memory)[i];
  }
#else
  int number() const { return 0; }
  void barrier() const {}

  template <typename T>
  T shuffle(T x, int) const {
    return x;
  }

  template <typename T>
  T& slot(int) const;
#endif
};

template <class Way, class Kernel>
__global__ void __launch_bounds__(RowPlan::kNarrowThreads)
    run_narrow(RowJob<typename Kernel::Real> job, Kernel kernel) {
  using T = typename Kernel::Real;
  const int warp = threadIdx.x / RowPlan::kWarp;
  T* scratch = reinterpret_cast<T*>(shared_memory) + int64_t{warp} * Kernel::kKept * job.columns;
  const BlockExchange<DeviceThread<RowPlan::kWarp>> exchange{};
  Way::run(kernel, job, exchange, blockIdx.x * int64_t{RowPlan::kWarps} + warp,
           gridDim.x * int64_t{RowPlan::kWarps}, scratch);
}

template <class Way, class Kernel>
__global__ void __launch_bounds__(RowPlan::kBlock)
    run_wide(RowJob<typename Kernel::Real> job, Kernel kernel, void* global) {
  using T = typename Kernel::Real;
  T* scratch = reinterpret_cast<T*>(shared_memory + RowPlan::kBlock);
  if (global != nullptr) {
    scratch = static_cast<T*>(global) + int64_t{blockIdx.x} * Kernel::kKept * job.columns;
  }
  const BlockExchange<DeviceThread<RowPlan::kBlock>> exchange{};
  Way::run(kernel, job, exchange, blockIdx.x, gridDim.x, scratch);
}

template <class Way, class Kernel>
void launch(const RowJob<typename Kernel::Real>& job, const Kernel& kernel, void* scratch,
            cudaStream_t stream) {
  const RowPlan plan = plan_of<Way, Kernel>(job);
  if (plan.blocks == 0) return;  // a grid without blocks is an error
  const auto blocks = static_cast<unsigned>(plan.blocks);
  if (plan.narrow) {
    run_narrow<Way><<<blocks, RowPlan::kNarrowThreads, plan.shared, stream>>>(job, kernel);
  } else {
    run_wide<Way><<<blocks, RowPlan::kBlock, plan.shared, stream>>>(
        job, kernel, plan.scratch == 0 ? nullptr : scratch);
  }
}

// Instantiates the launch of a kernel for float and double.
#define FEDEDGE_LAUNCH(Way, Kernel)                                                            \
  template void launch<Way>(const RowJob<Kernel<float>::Real>&, const Kernel<float>&, void*,   \
                            cudaStream_t);                                                     \
  template void launch<Way>(const RowJob<Kernel<double>::Real>&, const Kernel<double>&, void*, \
                            cudaStream_t)

}  // namespace fededge::cuda
