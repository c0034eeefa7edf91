// Marks maths that is compiled for the host and, by nvcc, for the device as well.
#pragma once

#include <cstdint>

// always_inline: the body must take on the instruction set of the loop that calls it.
#if defined(__CUDACC__)
#define FEDEDGE_HD __host__ __device__ __forceinline__
#define FEDEDGE_LAMBDA
#elif defined(__SANITIZE_ADDRESS__)
// Watched, all of it in one function would take the compiler many minutes.
#define FEDEDGE_HD inline
#define FEDEDGE_LAMBDA
#else
#define FEDEDGE_HD inline __attribute__((always_inline))
#define FEDEDGE_LAMBDA __attribute__((always_inline))
#endif
