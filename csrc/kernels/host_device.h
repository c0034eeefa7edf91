// Marks maths that is compiled for the host and, by nvcc, for the device as well.
#pragma once

#include <cstdint>

// always_inline: the body must take on the instruction set of the loop that calls it.
//
// FEDEDGE_APART: what is rare, or needed in many places. On the host it is a function of its own, so
// that the compiler has its registers for the others; its template's arguments must name the
// instruction set, or another one's could stand in for it.
#if defined(__CUDACC__)
#define FEDEDGE_HD __host__ __device__ __forceinline__
#define FEDEDGE_APART FEDEDGE_HD
#define FEDEDGE_LAMBDA
#elif defined(__SANITIZE_ADDRESS__)
// Watched, all of it in one function would take the compiler many minutes.
#define FEDEDGE_HD inline
#define FEDEDGE_APART inline
#define FEDEDGE_LAMBDA
#else
#define FEDEDGE_HD inline __attribute__((always_inline))
#define FEDEDGE_APART __attribute__((noinline))
#define FEDEDGE_LAMBDA __attribute__((always_inline))
#endif
