// FEDEDGE_HD marks functions for the host and, under nvcc, for the device.
#pragma once

#include <cstdint>

// On the host it means always_inline: the body must use the instruction set of the loop that calls
// it.
//
// FEDEDGE_APART marks functions that are rarely called, or called from many places. On the host
// they are not inlined, which frees registers in the caller. Their template arguments must include
// the register size: otherwise the linker could merge versions for different instruction sets.
#if defined(__CUDACC__)
#define FEDEDGE_HD __host__ __device__ __forceinline__
#define FEDEDGE_APART FEDEDGE_HD
#define FEDEDGE_LAMBDA
#elif defined(__SANITIZE_ADDRESS__)
// With sanitizers, inlining everything into one function would take the compiler many minutes.
#define FEDEDGE_HD inline
#define FEDEDGE_APART inline
#define FEDEDGE_LAMBDA
#else
#define FEDEDGE_HD inline __attribute__((always_inline))
#define FEDEDGE_APART __attribute__((noinline))
#define FEDEDGE_LAMBDA __attribute__((always_inline))
#endif
