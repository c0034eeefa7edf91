"""The trainer process of an agent, as the kernel sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["children_of", "exists", "maps_torch", "soon", "trainer_of"]


def trainer_of(agent: int) -> int | None:
    """The process id of an agent's trainer; None without one."""
    return next(iter(children_of(agent, b"fededge_agent.trainer")), None)


def children_of(agent: int, program: bytes = b"fededge_agent.") -> list[int]:
    """The processes of an agent: its trainer, and its exporter."""
    listed = Path(f"/proc/{agent}/task").glob("*/children")
    pids = [int(pid) for children in listed for pid in children.read_text().split()]
    return [pid for pid in pids if program in _read(pid, "cmdline")]


def maps_torch(pid: int) -> bool:
    return b"libtorch" in _read(pid, "maps")


def exists(pid: int) -> bool:
    """True if the process runs; one that was killed and not waited for does not."""
    return b"State:" in (status := _read(pid, "status")) and b"State:\tZ" not in status


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has just ended
        return b""


def soon(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """True once the condition is; False if it is not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
