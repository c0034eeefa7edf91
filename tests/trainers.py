"""The trainer process of an agent, as the kernel sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["children_of", "exists", "kill_in_turn", "maps_torch", "soon", "trainer_of"]

DIED = "the turn failed: the trainer process was killed by signal 9"


def trainer_of(agent: int) -> int | None:
    """The process id of an agent's trainer; None without one."""
    return next(iter(children_of(agent, b"fededge_agent.trainer")), None)


def children_of(agent: int, program: bytes = b"fededge_agent.") -> list[int]:
    """The processes of an agent: its trainer, and its exporter."""
    threads = Path(f"/proc/{agent}/task").glob("*")
    lists = [_read(agent, f"task/{thread.name}/children") for thread in threads]
    pids = [int(pid) for listed in lists for pid in listed.split()]
    return [pid for pid in pids if program in _read(pid, "cmdline")]


def maps_torch(pid: int) -> bool:
    return b"libtorch" in _read(pid, "maps")


def exists(pid: int) -> bool:
    """True if the process runs; one that was killed and not waited for does not."""
    return b"State:" in (status := _read(pid, "status")) and b"State:\tZ" not in status


def kill_in_turn(agent: int, log: Callable[[], str], number: int, seconds: float = 60.0) -> bool:
    """Kill an agent's trainer in its turn `number`, counted from 0; True once the agent says so.

    A kill between two turns fails none of them. It is repeated then: the next trainer imports torch
    for longer than we wait between two looks, and the turn after it waits for that import.
    """

    def turn_failed() -> bool:
        if log().count(DIED) > number:
            return True
        if log().count("training from") > number and (victim := trainer_of(agent)) is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(victim, signal.SIGKILL)
        return False

    return soon(turn_failed, seconds)


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
