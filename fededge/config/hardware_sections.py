"""Sections about the hardware: the coordinator's evaluation, and an agent's training."""

from __future__ import annotations

from typing import Annotated, Literal

from fededge.config.base import Section, described
from fededge.config.gate_sections import PriorityConfig, WhenConfig

__all__ = ["EvaluationHardwareConfig", "HardwareConfig"]


class EvaluationHardwareConfig(Section, frozen=True):
    """The device, threads and precision of the coordinator's evaluation."""

    device: Annotated[
        str, described("auto: a GPU if torch can use one; or cpu, cuda, cuda:1, xpu, …")
    ] = "cpu"
    threads: Annotated[
        int, described("CPU threads; 0: what is fastest for the network", ge=0, le=1024)
    ] = 0
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"],
        described("of convolutions and matrix products: float32, bfloat16 or float16"),
    ] = "float32"
    memory_format: Annotated[
        Literal["auto", "contiguous", "channels_last"],
        described("order of images in memory; auto: what is fastest on the device"),
    ] = "auto"


class HardwareConfig(EvaluationHardwareConfig, frozen=True):
    """The device, threads and precision of this box's training."""

    device: Annotated[
        str, described("auto: a GPU if torch can use one; or cpu, cuda, cuda:1, xpu, …")
    ] = "auto"
    idle: Annotated[
        float,
        described("seconds without training after which its process ends", ge=0, le=1e7),
    ] = 300.0
    stall: Annotated[
        float,
        described(
            "seconds without a training step after which its process is killed", ge=1, le=1e7
        ),
    ] = 900.0
    when: WhenConfig = WhenConfig()
    priority: PriorityConfig = PriorityConfig()
