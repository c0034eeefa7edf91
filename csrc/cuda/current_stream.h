// Launches on the tensor's device and torch's current stream, and checks for errors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace fededge::cuda {

template <class Launch>
void on_device(const at::Tensor& where, const Launch& launch) {
  const c10::cuda::CUDAGuard guard(where.device());
  launch(c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace fededge::cuda
