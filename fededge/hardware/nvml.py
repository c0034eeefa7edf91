"""Load and temperature of NVIDIA GPUs from the driver's own library, loaded when asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Nvml"]

LIBRARY = "libnvidia-ml.so.1"

OF_GPU = 0
"""The sensor on the GPU's die, among those of a card."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Nvml:
    """NVML of the driver, without a Python package. The constructor only stores."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._name = library
        self._library: Any = None

    def load(self) -> float | None:
        """The share of time in which the busiest GPU computed; None without driver or GPU."""
        return self._most(_load_of)

    def celsius(self) -> float | None:
        """The temperature of the hottest GPU; None without driver or GPU."""
        return self._most(_celsius_of)

    def _most(self, read: Callable[[Any, ctypes.c_void_p], float | None]) -> float | None:
        """The largest value that a GPU shows."""
        try:
            library = self._opened()
            values = [read(library, handle) for handle in _gpus(library)] if library else []
        except AttributeError:
            return None  # a library that lacks one of the functions
        return max((value for value in values if value is not None), default=None)

    def _opened(self) -> Any:
        if self._library is None:
            try:
                library = ctypes.CDLL(self._name)
            except OSError:
                return None
            if library.nvmlInit_v2():
                return None
            self._library = library
        return self._library


def _gpus(library: Any) -> Iterator[ctypes.c_void_p]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if not library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)):
            yield handle


def _load_of(library: Any, handle: ctypes.c_void_p) -> float | None:
    found = _Utilization()
    if library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(found)):
        return None  # a Jetson's NVML does not tell
    return float(found.gpu) / 100


def _celsius_of(library: Any, handle: ctypes.c_void_p) -> float | None:
    found = ctypes.c_uint()
    if library.nvmlDeviceGetTemperature(handle, ctypes.c_uint(OF_GPU), ctypes.byref(found)):
        return None
    return float(found.value)
