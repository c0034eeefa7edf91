"""`torch.emulated`: the functions of `torch.cuda` that torch and programs ask a device for."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType

import torch
from torch import Tensor

__all__ = ["extension", "register"]

NAME = "emulated"
LIBRARY = "emulated_accelerator"
OWNER = os.getpid()
# Environment variables for child processes of a test, and the control that each calls.
ORDERS = {
    "EMULATED_MEMORY": "limit_memory",
    "EMULATED_FAIL_ALLOCATION": "fail_allocation",
    "EMULATED_FAIL_LAUNCH": "fail_launch",
}

Index = torch.device | str | int | None


def register() -> None:
    """Give the device its name, this module and the methods of a tensor."""
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend()
    for variable, order in ORDERS.items():
        if variable in os.environ:
            getattr(extension(), order)(int(os.environ[variable]))


def extension() -> ModuleType:
    """The loaded C++ library."""
    return sys.modules[LIBRARY]


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return os.getpid() != OWNER


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(device: Index) -> None:
    index_of(device)


def device(index: Index) -> AbstractContextManager[None]:
    """There is one device only: it is the current one already."""
    index_of(index)
    return nullcontext()


def get_device_name(device: Index = None) -> str:
    return f"Emulated accelerator {index_of(device)}"


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    return True


def synchronize(device: Index = None) -> None:
    index_of(device)
    extension().synchronise()


def mem_get_info(device: Index = None) -> tuple[int, int]:
    """Free and total bytes."""
    index_of(device)
    now = extension().memory()
    return max(0, now["limit"] - now["used"]), now["limit"]


def memory_allocated(device: Index = None) -> int:
    index_of(device)
    return int(extension().memory()["used"])


def max_memory_allocated(device: Index = None) -> int:
    index_of(device)
    return int(extension().memory()["peak"])


def reset_peak_memory_stats(device: Index = None) -> None:
    index_of(device)
    extension().reset_peak()


def empty_cache() -> None:
    """Do nothing: the device has no cache."""


def default_generator() -> torch.Generator:
    found: torch.Generator = extension().default_generator()
    return found


def manual_seed(seed: int) -> None:
    default_generator().manual_seed(seed)


manual_seed_all = manual_seed


def get_rng_state(device: Index = None) -> Tensor:
    index_of(device)
    return default_generator().get_state()


def set_rng_state(state: Tensor, device: Index = None) -> None:
    index_of(device)
    default_generator().set_state(state)


def index_of(device: Index) -> int:
    """The device's index, which is 0."""
    index = device if isinstance(device, int) else torch.device(device or NAME).index
    if index not in (None, -1, 0):
        raise RuntimeError(f"emulated error: invalid device ordinal {index}")
    return 0
