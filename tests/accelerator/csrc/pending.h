// Copies that do not block: what the host may not rely on before it has synchronised.
//
// A copy to the host leaves poison in the host's memory until then. Host memory that a copy to the
// device reads must keep its contents until then; a change is an error at the synchronisation.
#pragma once

#include <ATen/core/Tensor.h>

namespace emulated {

// `to` receives `values` at the next synchronisation.
void fill_later(const at::Tensor& to, const at::Tensor& values);

// `from` must not change before the next synchronisation.
void keep_until_later(const at::Tensor& from);

// The device does all that it was told to.
void finish_copies();

// The host waits until the device has done all that it was told to.
void synchronise();

}  // namespace emulated
