"""Boxes that are not here: torch builds, device trees and drivers, as a `Probe` sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from fededge.hardware import Probe

__all__ = ["ORIN", "RTX", "FakeTorch", "box", "graphics_card", "jetson"]

GB = 2**30


@dataclass(frozen=True)
class FakeGpu:
    """A GPU as torch describes it."""

    name: str
    capability: tuple[int, int]
    free: int = 6 * GB
    error: str = ""


ORIN = FakeGpu("Orin", (8, 7))
RTX = FakeGpu("RTX 3060", (8, 6))


@dataclass
class FakeTorch:
    """A build of torch on a machine with these GPUs; it computes on the CPU.

    `error` is what its first use of CUDA raises: then it counts no GPU. `other` is another
    accelerator, and `lacks` are types of numbers that it does not have.
    """

    built: Sequence[str] = ()
    cuda_version: str | None = None
    gpus: Sequence[FakeGpu] = ()
    error: str = "Torch not compiled with CUDA enabled"
    other: str = ""
    lacks: Sequence[torch.dtype] = ()
    counted: list[str] = field(default_factory=list)
    float64 = torch.float64
    float32 = torch.float32
    bfloat16 = torch.bfloat16
    float16 = torch.float16

    def __post_init__(self) -> None:
        self.__version__ = "2.9.0"
        self.version = SimpleNamespace(cuda=self.cuda_version)
        self.cuda = SimpleNamespace(
            is_available=lambda: bool(self.gpus),
            device_count=lambda: len(self.gpus),
            get_arch_list=lambda: list(self.built),
            get_device_capability=lambda index: self.gpus[index].capability,
            get_device_name=lambda index: self.gpus[index].name,
            mem_get_info=lambda index: (self.gpus[index].free, 8 * GB),
        )
        self.accelerator = SimpleNamespace(
            is_available=lambda: bool(self.other),
            current_accelerator=lambda: SimpleNamespace(type=self.other),
        )

    def get_device_module(self, kind: str) -> Any:
        if kind == "cuda":
            return self.cuda
        if kind != self.other:
            raise RuntimeError(f"Invalid device string: '{kind}'")
        return SimpleNamespace(is_available=lambda: True, device_count=lambda: 1)

    def ones(self, shape: tuple[int, int], dtype: torch.dtype, device: str) -> torch.Tensor:
        kind, _, index = device.partition(":")
        if kind == "cuda" and not self.gpus:
            raise RuntimeError(self.error)
        if kind == "cuda" and self.gpus[int(index or 0)].error:
            raise RuntimeError(self.gpus[int(index or 0)].error)
        if kind == self.other and dtype in self.lacks:
            raise TypeError(f"the {kind} framework doesn't support {dtype}")
        self.counted.append(device)
        return torch.ones(shape, dtype=dtype)


def box(root: Path, like: FakeTorch, files: Mapping[str, str] | None = None) -> Probe:
    """A machine with these files, four cores and this torch."""
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Probe(like, root, lambda: 4)


def jetson(root: Path, like: FakeTorch, **files: str) -> Probe:
    """A Jetson Orin Nano by its device tree: strings there end with a zero byte."""
    tree = {
        "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
        "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0",
        "proc/meminfo": "MemTotal: 7802048 kB\nMemFree: 102400 kB\nMemAvailable: 4194304 kB\n",
        "dev/nvhost-gpu": "",
    }
    return box(root, like, {**tree, **files})


def graphics_card(root: Path, like: FakeTorch) -> Probe:
    """A PC with NVIDIA's driver."""
    said = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 21:21:55 UTC 2021"
    return box(root, like, {"proc/driver/nvidia/version": said, "dev/nvidia0": ""})
