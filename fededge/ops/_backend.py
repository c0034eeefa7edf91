"""The choice of the implementation for each device, made once, when an op is first called.

FEDEDGE_OPS=reference, cpu or cuda forces the compiled kernels nowhere, on the CPU alone, or on the
CPU and the GPU; FEDEDGE_REQUIRE_EXT=1 makes missing ones for the CPU an error, not a warning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fededge._internal.compiled import NAMES, Choice, Load, choose
from fededge.errors import ConfigError
from fededge.ops import reference

__all__ = ["Choice", "choose", "choose_cuda", "facts", "kernels"]


# All that a device must have before the compiled ops serve it; the other ops are made of these.
DEVICE_OPS = (
    "ala_step_",
    "distillation_forward",
    "ema_",
    "label_loss_forward",
    "probability_sums_",
    "sgd_step_",
)


def choose_cuda(environ: Mapping[str, str], cpu: Choice, gpu: bool, load: Load) -> Choice:
    """The same choice for a GPU; `cpu` is what serves the CPU.

    Args:
        environ: the process's environment variables.
        cpu: what serves the CPU; its module knows the ops that the CUDA module adds kernels to.
        gpu: whether torch sees one.
        load: imports the CUDA module and returns its build facts, or raises ImportError.
    """
    wanted = environ.get("FEDEDGE_OPS")
    if wanted in NAMES:
        return Choice("reference", f"FEDEDGE_OPS={wanted}")
    build, missing = _cuda_module(cpu, gpu, load)
    if missing is None:
        reason = "FEDEDGE_OPS=cuda" if wanted else "the CUDA module loaded and torch sees a GPU"
        return Choice("cuda", reason, build)
    if wanted == "cuda":
        raise ConfigError(f"FEDEDGE_OPS=cuda, but {missing}; unset it, or set FEDEDGE_OPS=cpu")
    return Choice("reference", missing, build)


def _cuda_module(cpu: Choice, gpu: bool, load: Load) -> tuple[Mapping[str, Any] | None, str | None]:
    """The facts of the CUDA module's build, and the reason why it cannot serve."""
    if cpu.build is None:
        return None, cpu.reason
    try:
        build = load()
    except ModuleNotFoundError:
        command = "FEDEDGE_CUDA=1 pip install --no-build-isolation --no-deps ."
        return None, f"no CUDA kernels were built ({command})"
    except ImportError as error:
        return None, f"the CUDA kernels do not load ({error})"
    return build, None if gpu else "torch sees no GPU"


def load_module() -> Mapping[str, Any]:
    """Import the compiled module, which registers `torch.ops.fededge`; return its facts."""
    from fededge._C import facts as build_facts

    return _for_this_torch(build_facts())


def load_cuda() -> Mapping[str, Any]:
    """Import the CUDA module, which adds its kernels to those ops; return its facts."""
    from fededge._cuda import facts as build_facts

    return _for_this_torch(build_facts())


def _for_this_torch(build: Mapping[str, Any]) -> Mapping[str, Any]:
    built, running = _minor(build["torch"]), _minor(torch.__version__)
    if built != running:
        # torch keeps no binary compatibility between minor versions: it may load and misbehave.
        raise ImportError(f"built for torch {build['torch']}, but torch {torch.__version__} runs")
    return build


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def kernels(like: Tensor) -> ModuleType:
    """The functions that serve this tensor's device."""
    choice = CHOICE if like.is_cpu else CUDA if like.is_cuda else other_device(like.device.type)
    if choice.name == "reference":
        return reference
    compiled: ModuleType = torch.ops.fededge
    if torch.compiler.is_compiling():  # what it sees of these is their schemas
        return compiled
    return direct()


@cache
def other_device(device_type: str) -> Choice:
    """The kernels for a device that is neither CPU nor CUDA GPU: its own module brings them."""
    wanted = os.environ.get("FEDEDGE_OPS")
    if wanted in NAMES:
        return Choice("reference", f"FEDEDGE_OPS={wanted}")
    if CHOICE.build is None:
        return Choice("reference", CHOICE.reason)
    key = torch._C._dispatch_key_for_device(device_type)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    missing = [op for op in DEVICE_OPS if not has_kernel(f"fededge::{op}", key)]
    if missing:
        return Choice("reference", f"there is no {missing[0]} for {device_type}")
    return Choice(device_type, f"torch has the kernels for {device_type}")


@cache
def direct() -> ModuleType:
    """The compiled ops as functions, which cost less to call than those of `torch.ops`."""
    from fededge import _C

    return _C


def facts() -> dict[str, Any]:
    """The implementations for the CPU and a GPU, the reasons for them, and the modules' builds."""
    return {**_facts(CHOICE), "threads": torch.get_num_threads(), "cuda": _facts(CUDA)}


def _facts(choice: Choice) -> dict[str, Any]:
    build = dict(choice.build) if choice.build is not None else None
    return {"implementation": choice.name, "reason": choice.reason, "build": build}


CHOICE = choose(os.environ, load_module)
CUDA = choose_cuda(os.environ, CHOICE, torch.cuda.is_available(), load_cuda)
