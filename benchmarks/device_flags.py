"""The flags for the device of a benchmark, and a clock that waits for it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from fededge.cli.hardware_flags import HARDWARE_FLAGS

__all__ = ["add_device_flags", "elapsed"]


def add_device_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add those of the flags; by default a benchmark runs on one thread of the CPU in float32."""
    defaults = {"device": "cpu", "threads": 1, "precision": "float32"}
    for name, kind, text in HARDWARE_FLAGS:
        if name in names:
            default = defaults[name]
            parser.add_argument(
                f"--{name}", type=kind, default=default, help=f"{text} (default: {default})"
            )


def elapsed(work: Callable[[], object], device: str) -> float:
    """Seconds of a call: of an accelerator until it has finished, of one CPU thread its own time.

    A busy machine disturbs the processor's time of one thread less than the clock's.
    """
    on_cpu = device == "cpu"
    alone = on_cpu and torch.get_num_threads() == 1
    clock = time.thread_time if alone else time.perf_counter
    if not on_cpu:
        _wait_for(device)
    start = clock()
    work()
    if not on_cpu:
        _wait_for(device)
    return clock() - start


def _wait_for(device: str) -> None:
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    (accelerator or torch.get_device_module(device)).synchronize(device)
