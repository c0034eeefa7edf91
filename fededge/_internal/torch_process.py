"""A child process that holds torch, and the connection to it.

Importing torch takes seconds, and half a gigabyte of memory for a CUDA build. A service that lives
for months and needs torch now and then has it in a process of its own: started when it is needed,
killed when it is not, and replaced when it dies. One request is answered at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from fededge.errors import FedEdgeError, ProcessDiedError

__all__ = [
    "Lineage",
    "RemoteError",
    "SignOfWork",
    "TorchProcess",
    "begin",
    "lineage",
    "report_progress",
]

LOOKS = 1.0
"""Seconds between two looks at the process: one that its program forked may hold the connection."""

EXITS = 5.0
"""Seconds that a process may take to end once its connection is closed."""

KILLED = "; is there enough memory? The kernel's log (dmesg) names what the OOM killer took"


class RemoteError(Exception):
    """An unexpected error in the process: its type and text; its traceback is in the log."""


class SignOfWork:
    """A sign of the process that it gets on with a request; it is no answer."""


class TorchProcess:
    """One process and the connection to it. The constructor only stores; `start` and `stop` do.

    Args:
        name: of the process, for errors: "the trainer process".
        program: the function that serves the connection, its only argument, as `module:function`.
        stall: seconds without a sign of progress after which a busy process is killed.
        progress: called at each sign of progress.
    """

    def __init__(
        self,
        name: str,
        program: str,
        stall: float = math.inf,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.program = program
        self.stall = stall
        self.progress = progress
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._sending = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process id; None if it was not started, or was stopped."""
        process = self._process
        return None if process is None else process.pid

    @property
    def alive(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None

    def start(self, environment: Mapping[str, str], *descriptors: int) -> None:
        """Start the process, and return at once; it holds these descriptors open as well."""
        self.stop()
        try:
            ours, end = socket.socketpair()
            with ours, end:  # the child alone holds it then: its exit closes the connection
                text = _program_text(end.fileno(), self.program)
                passed = (end.fileno(), *descriptors)
                self._process = _spawn([sys.executable, "-c", text], environment, passed)
                self._connection = Connection(ours.detach())
        except OSError as error:  # no memory, too many files or processes
            raise ProcessDiedError(f"{self.name} cannot be started ({error.strerror})") from None

    def send(self, message: object) -> None:
        """Send a message, from any thread; `receive` notices if the process is gone."""
        connection = self._connection
        if connection is not None:
            with self._sending, contextlib.suppress(OSError):
                connection.send(message)

    def receive(self, overdue: Callable[[], bool] = lambda: False) -> object:
        """The process's next answer.

        Args:
            overdue: asked once a second; when it is True the process is killed.

        Raises:
            ProcessDiedError: the process is gone, or made no progress and was killed.
            FedEdgeError, RemoteError: that is its answer.
        """
        process, connection = self._process, self._connection
        if process is None or connection is None:
            raise ProcessDiedError(f"{self.name} does not run")
        try:
            answer = self._await_answer(process, connection, overdue)
        except (EOFError, OSError):
            raise ProcessDiedError(f"{self.name} {self._end(process)}") from None
        if isinstance(answer, (FedEdgeError, RemoteError)):
            raise answer
        return answer

    def _await_answer(
        self, process: subprocess.Popen[bytes], connection: Connection, overdue: Callable[[], bool]
    ) -> object:
        seen = time.monotonic()
        while True:
            if connection.poll(LOOKS):
                answer: object = connection.recv()
                if not isinstance(answer, SignOfWork):
                    return answer
                seen = time.monotonic()
                self.progress()
            elif process.poll() is not None and not connection.poll():
                raise EOFError
            if overdue():
                process.kill()
            if time.monotonic() - seen > self.stall:
                self.stop()
                raise ProcessDiedError(
                    f"{self.name} made no progress for {self.stall:.0f} s and was killed"
                )

    def _end(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for a process that closed its connection; how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXITS)
        self.stop()
        code = process.returncode
        if code is None:
            return "does not end"
        if code >= 0:
            return f"ended with exit code {code}"
        killed = KILLED if -code == signal.SIGKILL else ""
        return f"was killed by signal {-code} ({signal.strsignal(-code)}){killed}"

    def stop(self) -> None:
        """Kill the process; by itself it would take its time to put torch away."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in a driver
                process.wait(EXITS)
        if connection is not None:
            with self._sending:  # the process is gone: nobody sends for long
                connection.close()


def report_progress(connection: Connection) -> Callable[[], None]:
    """A function for the process to call as often as it likes: it reports once a second."""
    reported = -math.inf

    def report() -> None:
        nonlocal reported
        now = time.monotonic()
        if now - reported >= LOOKS:
            reported = now
            connection.send(SignOfWork())

    return report


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], passed: Sequence[int]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,  # whatever a plugin prints belongs into the log
        pass_fds=passed,
        env=dict(environment),
    )


def _program_text(descriptor: int, program: str) -> str:
    """The program's text; its comment is for those who read the command line: see `lineage`."""
    text = f"from {__name__} import begin; begin({descriptor}, {program!r})"
    return f"{text}  # started by {os.getpid()}"


_PROGRAM_TEXT = re.compile(r"from .+ import begin; begin\(\d+, '(.+)'\)  # started by (\d+)")


@dataclass(frozen=True)
class Lineage:
    """A process of this module: its program, the process that started it, and its parent now."""

    program: str
    starter: int
    parent: int


def lineage(pid: int) -> Lineage | None:
    """Read a process's lineage from /proc; None for any other process, or one that has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = next(filter(None, map(_PROGRAM_TEXT.fullmatch, words)), None)
    parent = re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)
    if found is None or parent is None:
        return None
    return Lineage(found[1], int(found[2]), int(parent[1]))


def begin(descriptor: int, program: str) -> None:
    """The process's first lines: they run before torch is imported, which takes seconds.

    Signals for the parent may reach both: this process ignores them, and ends with its parent.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, args=(descriptor,), daemon=True).start()
    module, _, function = program.partition(":")
    getattr(importlib.import_module(module), function)(Connection(descriptor))


def _follow_parent(descriptor: int) -> None:
    """End at once when the parent closes the connection, or dies: also in mid-training."""
    poll = select.poll()
    poll.register(descriptor, 0)  # a hangup is reported anyway
    poll.poll()
    os._exit(0)
