"""Find out if a service runs with a state folder, without taking its lock."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["runs"]

LOCKS = Path("/proc/locks")


def runs(folder: Path, locks: Path = LOCKS) -> bool:
    """True if a process holds the folder's lock; False also where the system does not tell.

    To try the lock instead could keep a service from starting at that moment.
    """
    try:
        about = (folder / "lock").stat()
        text = locks.read_text()
    except OSError:
        return False
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    return any(place in line.split() for line in text.splitlines())
