// Exponential moving average of a model.
#pragma once

#include "kernels/numbers/host_device.h"

namespace fededge {

// target = mu * target + (1 - mu) * source
struct Ema {
  float* target;
  const float* source;
  float mu;
  float rest;  // 1 - mu, rounded once from double

  FEDEDGE_HD void operator()(int64_t i) const { target[i] = mu * target[i] + rest * source[i]; }
};

}  // namespace fededge
