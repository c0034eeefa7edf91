// Marks maths that is compiled for the host and, by nvcc, for the device as well.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define FEDEDGE_HD __host__ __device__ __forceinline__
#else
// always_inline: the body must take on the instruction set of the loop that calls it.
#define FEDEDGE_HD inline __attribute__((always_inline))
#endif
