"""Notices that the device's data has changed, while the device is unable to train on it."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fededge_agent.machine.events import Cause

__all__ = ["DataWatch"]

LOOKS = 5.0
"""Seconds between two looks at the data."""

DEPTH = 2
"""Levels of folders below the root: `train/<class>`."""

MOST_ENTRIES = 10_000
"""Entries that a look reads; a folder's own time changes with its entries."""

Entry = tuple[str, int, int]


class DataWatch:
    """Compares times and sizes of files and folders. The constructor only stores.

    `begin` is called before the data is read: a change during the reading counts as well.
    """

    def __init__(self, root: str, clock: Callable[[], float]) -> None:
        self.root = Path(root) if root else None
        self.clock = clock
        self._seen: tuple[Entry, ...] = ()
        self._looked = -math.inf

    def begin(self) -> None:
        self._seen = self._now()

    def changed(self, cause: Cause | None) -> bool:
        """True if the data is another one than at `begin`, and was the cause of the failure."""
        if cause is not Cause.DATA or self.clock() - self._looked < LOOKS:
            return False
        self._looked = self.clock()
        return self._now() != self._seen

    def _now(self) -> tuple[Entry, ...]:
        if self.root is None:
            return ()
        return tuple(itertools.islice(_entries(self.root, DEPTH), MOST_ENTRIES))


def _entries(path: Path, depth: int) -> Iterator[Entry]:
    """Name, time and size of a file; of a folder, with those of its entries. None if unreadable."""
    try:
        about = path.stat()
        yield str(path), about.st_mtime_ns, about.st_size
        if depth and path.is_dir():
            with os.scandir(path) as found:
                below = sorted(entry.path for entry in found)
            for name in below:
                yield from _entries(Path(name), depth - 1)
    except OSError:
        return
