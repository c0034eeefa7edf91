"""Sections for a box with other work: its conditions for training, and its priority."""

from __future__ import annotations

from typing import Annotated, Literal

from fededge.config.base import Section, described

__all__ = ["PriorityConfig", "WhenConfig"]


class WhenConfig(Section, frozen=True):
    """Conditions under which this box trains; otherwise its agent rests and reports the reason."""

    hours: Annotated[
        tuple[str, ...],
        described("local time, as '22:00-06:00' or 'Sat,Sun 00:00-24:00'; empty: at any time"),
    ] = ()
    on_mains: Annotated[bool, described("only while a charger is plugged in")] = False
    power_modes: Annotated[
        tuple[int, ...], described("Jetson: only in these modes of nvpmodel; empty: in any")
    ] = ()
    below_celsius: Annotated[
        float,
        described("only while processor and GPU are cooler; 0: at any temperature", ge=0, le=150),
    ] = 0.0
    others_cpu_below: Annotated[
        float,
        described("only while other programs take less of the processors; 0: always", ge=0, le=1),
    ] = 0.0
    others_gpu_below: Annotated[
        float,
        described("only while others use the GPU for less of the time; 0: always", ge=0, le=1),
    ] = 0.0


class PriorityConfig(Section, frozen=True):
    """Priority of the training relative to other programs of this box."""

    nice: Annotated[int, described("CPU priority, from 0 (normal) to 19 (lowest)", ge=0, le=19)] = 0
    ionice: Annotated[str, described("disk priority: 'idle', 'best-effort:7'; empty: normal")] = ""
    stream_priority: Annotated[
        Literal["default", "low"],
        described("NVIDIA GPU: low runs after the other clients of an MPS daemon"),
    ] = "default"
