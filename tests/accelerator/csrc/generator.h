// Random numbers of the device: a generator of its own, which a CPU generator drives.
#pragma once

#include <ATen/core/Generator.h>

namespace emulated {

const at::Generator& default_generator();
at::Generator new_generator();

// The CPU generator behind a generator of the device; any other generator is refused.
at::Generator engine_of(const at::Generator& generator);

}  // namespace emulated
