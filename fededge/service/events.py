"""Events and commands that the state machines of both services know."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Note", "Tick"]


@dataclass(frozen=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True)
class Note:
    """A line for the log, about a device if one is named."""

    text: str
    device: str = ""
