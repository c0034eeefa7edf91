"""The flags for hardware, which all commands that train on this machine share."""

from __future__ import annotations

import argparse

__all__ = ["HARDWARE_FLAGS", "add_hardware_flags"]

HARDWARE_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("device", str, "device that trains: cpu, cuda, cuda:1, …; auto: a GPU if torch can use one"),
    ("threads", int, "CPU threads of each process; 0: what is fastest for the network"),
    ("precision", str, "of convolutions and matrix products: float32, bfloat16 or float16"),
)


def add_hardware_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags; by default training runs on the CPU, where results can be repeated."""
    defaults = {"device": "cpu", "threads": 0, "precision": "float32"}
    for name, kind, text in HARDWARE_FLAGS:
        default = defaults[name]
        parser.add_argument(
            f"--{name}", type=kind, default=default, help=f"{text} (default: {default})"
        )
