"""The API's answers. Fields are only ever added; docs/operation.md says what they mean."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

__all__ = [
    "ChangeView",
    "DeviceView",
    "HistoryView",
    "OutcomeView",
    "RoundView",
    "StatusView",
    "VersionView",
]


class DeviceView(Struct, frozen=True, kw_only=True):
    """A device. What is not known is null; times are in seconds."""

    device: str
    standing: str
    attendance: str = "absent"
    part: str = "idle"
    doing: str = "idle"
    why: str = ""
    rest_left: float | None = None
    quarantined: bool = False
    activity: str | None = None
    problem: str = ""
    examples: int | None = None
    seen: float | None = None
    accuracy: float | None = None
    took: float | None = None
    steps: tuple[int, int] | None = None
    chunks: tuple[int, int] | None = None
    backoff_left: float | None = None
    software: str = ""


class StatusView(Struct, frozen=True, kw_only=True):
    """A federation as its coordinator sees it; `coordinator` is "running" or "down"."""

    federation: str
    coordinator: str
    round: int
    rounds: int
    phase: str
    paused: bool
    version: str
    accuracy: float | None
    quorum: int
    asked: int = 0
    answered: int = 0
    waits_for: str = ""
    deadline_left: float | None = None
    problem: str = ""
    devices: list[DeviceView] = []


class VersionView(Struct, frozen=True, kw_only=True):
    """A version of the model; `kept`: its file is still there. `date`: seconds since 1970.

    `changes`: what an operator changed with it, and the weights that a run has begun with.
    """

    version: str
    round: int
    accuracy: float | None
    restored: str
    kept: bool
    date: float | None
    participants: int
    pinned: bool = False
    changes: list[str] = []


class RoundView(Struct, frozen=True, kw_only=True):
    """A round that was done; `devices` of the last rounds, with the accuracy of each."""

    round: int
    version: str
    accuracy: float | None
    restored: str
    seconds: float | None
    date: float | None
    participants: int
    devices: dict[str, float | None]


class ChangeView(Struct, frozen=True, kw_only=True):
    """A change of the run, from the version after `round` rounds on: "settings" or "rollback"."""

    round: int
    date: float
    kind: str
    what: str


class HistoryView(Struct, frozen=True, kw_only=True):
    """The rounds that were done, the orders that were given and the changes, oldest first."""

    rounds: list[RoundView]
    orders: list[dict[str, Any]]
    changes: list[ChangeView] = []


class OutcomeView(Struct, frozen=True, kw_only=True):
    """The outcome of an order: False if all was as ordered already, and one sentence."""

    changed: bool
    text: str
