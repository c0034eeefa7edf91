"""The disk of the state folder: free space, and the time of a synced write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.subject import Subject

__all__ = ["existing", "space", "speed"]

LEAST_FREE = 64 * 2**20
COPIES = 4
"""Files of a model's size that a round may write."""

SAMPLE = 2 * 2**20
SLOWEST = 1.0
"""Seconds that a synced write of the sample may take."""


def existing(folder: Path) -> Path:
    """The folder, or the first of its parents that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def space(subject: Subject) -> Iterator[Diagnosis]:
    model = 0 if subject.state is None else subject.state.manifest.bytes
    needed = max(LEAST_FREE, COPIES * model)
    free = subject.box.free_bytes(existing(Path(subject.config.state)))
    if free < needed:
        what = f"{free >> 20:,} MiB are free, a round needs {needed >> 20:,} MiB"
        yield found("disk-full", what, **subject.values)


def speed(subject: Subject) -> Iterator[Diagnosis]:
    """Write and sync a file that has no name, so that nothing is left of it."""
    folder = existing(Path(subject.config.state))
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError:  # not writable, which another check says, or a file system without such files
        return
    begun = subject.box.clock()
    try:
        os.write(handle, bytes(SAMPLE))
        os.fsync(handle)
    except OSError:  # full: `space` says so
        return
    finally:
        os.close(handle)
    seconds = subject.box.clock() - begun
    if seconds > SLOWEST:
        what = f"a synced write of {SAMPLE >> 20} MiB takes {seconds:.1f} s in {folder}"
        yield found("disk-slow", what, **subject.values)
