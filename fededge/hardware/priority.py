"""A lower priority for the process that trains: processors, disks, and the GPU."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fededge.errors import ConfigError

__all__ = ["Priority", "apply", "check_ionice"]

log = logging.getLogger("hardware")

IOPRIO_SET: Mapping[str, int] = {"x86_64": 251, "aarch64": 30}
"""Numbers of the system call ioprio_set, which the C library has no function for."""

THREADS = "/proc/self/task"

OF_PROCESS = 1
BEST_EFFORT, IDLE = 2, 3
CLASS_SHIFT = 13
IDLE_PRIORITY = IDLE << CLASS_SHIFT

BELOW_NORMAL = "1"
"""Priority of a client of NVIDIA's MPS: the only one that ranks the processes on a GPU."""


@dataclass(frozen=True)
class Priority:
    """The training process's priority below that of other processes.

    Attributes:
        nice: 0 (as others) to 19 (last).
        ionice: `idle`, `best-effort:0` to `best-effort:7`; empty: as others.
        stream_priority: `low`: behind the other clients of an MPS daemon. Within a process CUDA's
            default stream has the lowest priority already.
    """

    nice: int = 0
    ionice: str = ""
    stream_priority: str = "default"


def apply(priority: Priority) -> None:
    """Lower the priority of this process and all that it starts; call it before torch uses CUDA.

    A call that the system refuses costs a warning, and the training goes on as before.
    """
    if priority.nice:
        with _warned(f"nice = {priority.nice}"):
            _of_each_thread(lambda thread: _set_nice(thread, priority.nice))
    if priority.ionice:
        with _warned(f"ionice = '{priority.ionice}'"):
            value = check_ionice(priority.ionice)
            _of_each_thread(lambda thread: _set_ioprio(thread, value))
    if priority.stream_priority == "low":
        os.environ.setdefault("CUDA_MPS_CLIENT_PRIORITY", BELOW_NORMAL)


@contextlib.contextmanager
def _warned(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning("hardware.priority: the system refuses %s (%s)", what, error.strerror)


def _of_each_thread(lower: Callable[[int], None]) -> None:
    """Linux has priorities per thread, and numpy starts a pool of them when it is imported.

    Threads that are started later inherit that of the thread that starts them.
    """
    lower(0)  # this thread; elsewhere than on Linux the process
    with contextlib.suppress(FileNotFoundError):
        for thread in map(int, os.listdir(THREADS)):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                lower(thread)


def _set_nice(thread: int, nice: int) -> None:
    """A thread that is lower already stays so: raising it takes a privilege."""
    lowest = max(nice, os.getpriority(os.PRIO_PROCESS, thread))
    os.setpriority(os.PRIO_PROCESS, thread, lowest)


def check_ionice(text: str) -> int:
    """The kernel's number for a class and level of I/O priority; ConfigError for another text."""
    kind, _, level = text.partition(":")
    if text == "idle":
        return IDLE_PRIORITY
    if kind == "best-effort" and level in tuple("01234567"):
        return BEST_EFFORT << CLASS_SHIFT | int(level)
    raise ConfigError(f"ionice is '{text}'; allowed: 'idle', 'best-effort:0' … 'best-effort:7'")


def _set_ioprio(thread: int, value: int) -> None:
    number = IOPRIO_SET.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"not known on {platform.machine()}")
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ctypes.c_long(number), OF_PROCESS, thread, value):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
