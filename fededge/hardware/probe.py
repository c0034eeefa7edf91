"""Views of the machine: torch's, and the kernel's files. Tests replace both."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fededge._internal.lazy_torch import torch

__all__ = ["Probe"]

DRIVER_NODES = ("dev/nvidia0", "dev/nvhost-gpu", "dev/nvgpu/igpu0/power")
"""Device nodes of NVIDIA's drivers: a card's, and a Jetson's before and since JetPack 6."""


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Probe:
    """Reads what the machine and its torch are. It changes nothing.

    Args:
        torch: the module, or something like it.
        root: the folder above /proc, /sys, /dev and /etc.
        affinity: counts the cores that this process may run on.
    """

    torch: Any = torch
    root: Path = Path("/")
    affinity: Callable[[], int] = _affinity

    def text(self, path: str) -> str:
        """The file's text; empty if it cannot be read."""
        try:
            return (self.root / path).read_text("utf-8", errors="replace").strip("\0\n ")
        except OSError:
            return ""

    @property
    def cores(self) -> int:
        """Cores that this process may use: its affinity, and its control groups' quotas."""
        return max(1, min(self.affinity(), *map(int, self._quotas()), 2**16))

    def _quotas(self) -> list[float]:
        """The quotas of this process's control group and those above it, in cores."""
        group = next(
            (line[3:] for line in self.text("proc/self/cgroup").splitlines() if line[:3] == "0::"),
            "/",
        )
        path = PurePosixPath("sys/fs/cgroup") / group.lstrip("/")
        folders = [path, *path.parents][: len(path.parts) - 2]
        limits = [self.text(f"{folder}/cpu.max").split() for folder in folders]
        first = "sys/fs/cgroup/cpu/cpu.cfs_"
        limits.append([self.text(f"{first}quota_us"), self.text(f"{first}period_us")])
        return [
            max(1.0, int(quota) / int(period))
            for quota, period in (limit for limit in limits if len(limit) == 2)
            if quota.isdigit() and period.isdigit() and int(period)
        ]

    @property
    def jetson(self) -> str:
        """The board's name if this is a Jetson, else empty."""
        model = self.text("proc/device-tree/model")
        compatible = self.text("proc/device-tree/compatible")
        if "nvidia,tegra" in compatible or "Jetson" in model:
            return model or "NVIDIA Jetson"
        return "NVIDIA Jetson" if self.text("etc/nv_tegra_release") else ""

    @property
    def driver(self) -> str:
        """The version of NVIDIA's driver, "unknown" if only its device node is there, or empty."""
        found = re.search(r"Kernel Module\D*?([\d.]+)", self.text("proc/driver/nvidia/version"))
        if found:
            return found[1]
        nodes = any((self.root / node).exists() for node in DRIVER_NODES)
        return "unknown" if nodes else ""

    @property
    def available_memory(self) -> int:
        """Bytes of the machine's memory that are free or can be freed; 0 if unknown."""
        found = re.search(r"MemAvailable:\s+(\d+) kB", self.text("proc/meminfo"))
        return 1024 * int(found[1]) if found else 0

    @property
    def cuda_version(self) -> str:
        """The CUDA that torch was built with; empty for a CPU build."""
        return self.torch.version.cuda or ""

    def module(self, kind: str) -> Any:
        """Torch's module for a device type, such as `torch.cuda`; None if it has none."""
        try:
            return self.torch.get_device_module(kind)
        except (RuntimeError, AttributeError):
            return None

    def count(self, kind: str) -> int:
        """Number of devices of this type that torch sees."""
        module = self.module(kind)
        with warnings.catch_warnings():  # torch warns of a driver that is too old: we say it too
            warnings.simplefilter("ignore")
            return module.device_count() if module is not None and module.is_available() else 0

    def accelerator(self) -> str:
        """The accelerator's type that torch was built for and sees; empty without one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            accelerator = getattr(self.torch, "accelerator", None)  # since torch 2.6
            if accelerator is None or not accelerator.is_available():
                return ""
            return str(accelerator.current_accelerator().type)

    def failure(self, device: str, dtype: str = "float32") -> str:
        """The error of a small computation on a device; empty if it gives the right result."""
        try:
            a = self.torch.ones((2, 2), dtype=getattr(self.torch, dtype), device=device)
            result = float((a @ a + a).sum())
        except Exception as error:  # noqa: BLE001 - torch and drivers raise many kinds
            return str(error).strip().partition("\n")[0] or type(error).__name__
        return "" if result == 12 else f"a sum was {result}, not 12"

    def free_memory(self, index: int) -> int:
        """Free bytes of a CUDA device.

        A Jetson's GPU shares the machine's memory, and CUDA does not count what can be freed.
        """
        free = int(self.torch.cuda.mem_get_info(index)[0])
        return max(free, self.available_memory) if self.jetson else free
