"""The checks of an NVIDIA GPU: what keeps torch or the kernels from using it, and the fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fededge.hardware.probe import Probe

__all__ = ["Finding", "covers", "gpu_finding", "kernels_finding", "missing_gpu"]

LEAST_MEMORY = 512 * 2**20
"""Free bytes that a training needs: torch's CUDA context alone takes about 300 MB."""

JETSON_TORCH = "install the torch that NVIDIA builds for this JetPack (docs/jetson.md)"
CUDA_TORCH = "install a CUDA build of torch (https://pytorch.org/get-started)"
ARCHITECTURE = re.compile(r"(?:(sm|compute)_)?(\d+)\.?(\d)([af]?)(\+PTX)?")
"""Such as sm_87 and compute_120 of torch, or 8.7 and 9.0+PTX of TORCH_CUDA_ARCH_LIST."""

BUILD_KERNELS = "FEDEDGE_CUDA=1 pip install --no-build-isolation --no-deps ."


@dataclass(frozen=True)
class Finding:
    """A problem of the hardware or its software, and the fix."""

    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.problem}; fix: {self.fix}"


def missing_gpu(probe: Probe) -> Finding | None:
    """The reason why torch sees no GPU although the box has one; None if the box has none."""
    box = probe.jetson or (f"a box with NVIDIA's driver {probe.driver}" if probe.driver else "")
    if not box:
        return None
    version = probe.torch.__version__
    if not probe.cuda_version:
        problem = f"torch {version} is built for the CPU only, on {box}"
        return Finding(problem, _right_torch(probe))
    why = probe.failure("cuda") or "torch counts no devices"
    if "too old" in why:
        return _old_driver(probe, why)
    fix = "check that this user may open the GPU's device nodes: ls -l /dev/nv*; groups"
    return Finding(f"torch {version} cannot use the GPU of {box} ({why})", fix)


def _old_driver(probe: Probe, why: str) -> Finding:
    found = re.search(r"found version (\d+)", why)
    knows = f" knows CUDA {int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}" if found else ""
    fix = "update the JetPack" if probe.jetson else "update NVIDIA's driver"
    problem = f"NVIDIA's driver {probe.driver}{knows}, too old for torch's {probe.cuda_version}"
    return Finding(problem, f"{fix}, or install a torch for an older CUDA")


def gpu_finding(probe: Probe, index: int) -> Finding | None:
    """The reason why torch cannot train on this CUDA device; None if it can."""
    capability = probe.torch.cuda.get_device_capability(index)
    built = probe.torch.cuda.get_arch_list()
    # A ROCm build calls its devices cuda too; its architectures (gfx1100) have other rules.
    fits = covers(built, capability) or not any(map(ARCHITECTURE.fullmatch, built))
    why = probe.failure(f"cuda:{index}") if fits else "no kernel image"
    if "no kernel image" in why:
        problem = (
            f"torch {probe.torch.__version__} has no code for cuda:{index}, "
            f"{_named(probe, index)} (it has {', '.join(built)})"
        )
        return Finding(problem, _right_torch(probe))
    if "out of memory" in why or (not why and probe.free_memory(index) < LEAST_MEMORY):
        return _little_memory(probe, index)
    if why:
        fix = "look for the driver's errors: dmesg | grep -i -e nvrm -e nvgpu"
        return Finding(f"cuda:{index} fails a small computation ({why})", fix)
    return None


def _little_memory(probe: Probe, index: int) -> Finding:
    free = probe.free_memory(index) // 2**20
    fix = "end other programs that use the GPU" + ("" if probe.jetson else ": nvidia-smi")
    problem = f"cuda:{index} has {free} MB of free memory, training needs {LEAST_MEMORY // 2**20}"
    return Finding(problem, fix)


def kernels_finding(
    probe: Probe, build: Mapping[str, Any] | None, reason: str, index: int = 0
) -> Finding | None:
    """The reason why the compiled kernels do not serve a GPU; None if they do.

    Args:
        probe: the machine, on which torch sees a GPU.
        build: how the CUDA kernels were built; None if they did not load.
        reason: why they did not load.
        index: of the CUDA device.
    """
    if build is None:
        why = reason.partition(" (FEDEDGE_CUDA=1")[0]  # the fix follows
        return Finding(f"the GPU runs plain torch: {why}", BUILD_KERNELS)
    major, minor = probe.torch.cuda.get_device_capability(index)
    built = re.findall(r"[^\s,;]+", build["architectures"])
    if covers(built, (major, minor)) or not any(map(ARCHITECTURE.fullmatch, built)):
        return None
    problem = f"the CUDA kernels are built for {', '.join(built)}, not for {_named(probe, index)}"
    return Finding(problem, f'TORCH_CUDA_ARCH_LIST="{major}.{minor}" {BUILD_KERNELS}')


def covers(built: Iterable[str], capability: tuple[int, int]) -> bool:
    """True if code for one of these architectures runs on a GPU of this compute capability.

    Binary code (sm_80) runs within its major version, from its minor version on. Intermediate code
    (compute_80) runs on everything newer. A suffix binds it: `a` to one GPU, `f` to a family.
    """
    return any(_runs(name, capability) for name in built)


def _runs(name: str, capability: tuple[int, int]) -> bool:
    found = ARCHITECTURE.fullmatch(name)
    if found is None:
        return False
    kind, *numbers, suffix, ptx = found.groups()
    built = (int(numbers[0]), int(numbers[1]))
    if suffix == "a":
        return built == capability
    if (kind == "compute" or ptx) and suffix != "f":
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def _named(probe: Probe, index: int) -> str:
    major, minor = probe.torch.cuda.get_device_capability(index)
    return f"{probe.torch.cuda.get_device_name(index)} of compute capability {major}.{minor}"


def _right_torch(probe: Probe) -> str:
    return JETSON_TORCH if probe.jetson else CUDA_TORCH
