// Epilogue of a source file that began with cpu/isa_begin.h.
#if defined(__clang__)
#pragma clang attribute pop
#endif
