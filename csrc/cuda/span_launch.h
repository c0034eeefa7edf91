// Launches a span. The .cu file instantiates it; it includes no torch headers and compiles quickly.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fededge::cuda {

template <class Span>
void launch_span(int64_t n, const Span& span, cudaStream_t stream);

}  // namespace fededge::cuda
