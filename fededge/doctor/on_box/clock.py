"""The clock: it must not be behind what has happened already."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.subject import Subject

__all__ = ["behind"]

TOLERANCE = 120.0
"""Seconds that two clocks may differ."""


def behind(subject: Subject) -> Iterator[Diagnosis]:
    """Compare with the newest state of the federation, and with the newest file of our own."""
    now = subject.box.wall()
    newest = {
        "the newest file in the state folder was written": _newest(Path(subject.config.state))
    }
    if subject.state is not None:
        newest["the federation's state was issued"] = subject.state.issued / 1000
    for event, moment in newest.items():
        if moment > now + TOLERANCE:
            what = f"{event} {moment - now:.0f} s in the future by this box's clock"
            yield found("clock-behind", what, **subject.values)
            return


def _newest(folder: Path) -> float:
    newest = 0.0
    with contextlib.suppress(OSError):  # a file that a running service removes meanwhile
        for path in folder.rglob("*"):
            newest = max(newest, path.lstat().st_mtime)
    return newest
