"""The lock of the agent's folder, which its child processes hold too.

A child ends when its agent dies. One that cannot (stopped, or hung before its first line) would
keep the next agent out of the folder: that agent kills it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from pathlib import Path
from typing import IO

from fededge._internal.torch_process import lineage
from fededge.errors import StoreError
from fededge.storage.files import lock_folder
from fededge_agent.store.programs import EXPORTER, TRAINER

__all__ = ["take_lock"]

log = logging.getLogger("agent")

LOCK_WAIT = 10.0
"""Seconds that a start waits for the lock: a killed agent's children hold it until they end."""

ENDS = 1.0
"""Seconds that they may take to end by themselves, and between two looks at who holds the lock."""

POLL = 0.02

NAMES = {TRAINER: "trainer", EXPORTER: "exporter"}
PROC = Path("/proc")


def take_lock(folder: Path) -> IO[str]:
    """Lock the folder; wait for children of a dead agent, and kill those that do not end."""
    begun = looked = time.monotonic()
    while True:
        try:
            return lock_folder(folder, "another agent")
        except StoreError:
            now = time.monotonic()
            if now >= begun + LOCK_WAIT:
                raise
            if now >= looked + ENDS:
                looked = now
                kill_orphans(folder / "lock")
            time.sleep(POLL)


def kill_orphans(lock: Path) -> None:
    """Kill the processes that hold the lock, if all of them are children of a dead agent.

    The second look excludes an agent that has just begun: it held the lock before its children.
    """
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError):  # no pidfd: kill nobody
        found = {pid: os.pidfd_open(pid) for pid in _holders(lock)}
        for handle in found.values():
            opened.callback(os.close, handle)
        orphans = {pid: _orphan(pid) for pid in _holders(lock)}
        if not all(orphans.values()):
            return
        for pid in found.keys() & orphans.keys():
            log.warning("killing the %s process %d of a dead agent: it does not end by itself and "
                        "holds %s", orphans[pid], pid, lock)  # fmt: skip
            signal.pidfd_send_signal(found[pid], signal.SIGKILL)


def _holders(lock: Path) -> list[int]:
    """The processes that have this file open, as far as this user may see them."""
    try:
        wanted = lock.stat()
    except OSError:
        return []
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if _holds(pid, lock.name, wanted)]


def _holds(pid: int, name: str, wanted: os.stat_result) -> bool:
    """True if a descriptor of the process is this file; only files of its name are looked at."""
    with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
        return any(_is(file, name, wanted) for file in (PROC / str(pid) / "fd").iterdir())
    return False


def _is(file: Path, name: str, wanted: os.stat_result) -> bool:
    with contextlib.suppress(OSError):  # it has just been closed
        return file.readlink().name == name and os.path.samestat(file.stat(), wanted)
    return False


def _orphan(pid: int) -> str:
    """The name of an agent's child process that lost its parent; empty for any other process."""
    about = lineage(pid)
    if about is None or about.parent == about.starter:
        return ""
    return NAMES.get(about.program, "")
