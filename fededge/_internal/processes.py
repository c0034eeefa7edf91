"""Child processes that never outlive us, and end in order when we ask."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Child"]

# A child must die with this process, even if that is killed with -9, on which no code of ours runs.
# So the shell leaves a reader on a pipe behind before it becomes the child: the kernel closes our
# end when we die, the read fails, and the child is killed. An orderly end sends a line first. (A
# process forked from us without an exec has that end too, and keeps the child alive.) Linux's
# PR_SET_PDEATHSIG would do it without a pipe, but kills the child as soon as the *thread* that
# started it ends, is forgotten when the child changes its user, and needs Python code between fork
# and exec, which is not safe in a process with threads.
_WITH_READER = 'exec 3<&0 </dev/null; { read -r _ <&3 || kill -9 $$; } & exec "$@" 3<&-'


class Child:
    """A program in a child process, its output in a log. The constructor only stores."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command = list(command)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process, or None if it does not run."""
        return None if self._process is None or self.exit_code is not None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """What it ended with; None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C reaches us alone, and we end our children in order.
            self._process = subprocess.Popen(
                ["sh", "-c", _WITH_READER, "sh", *self.command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def terminate(self) -> None:
        """Ask it to end; `stop` waits for it."""
        if self._process is not None:
            self._process.terminate()

    def stop(self, seconds: float) -> None:
        """Ask it to end, and end it by force if it takes longer. Nothing if it is not there."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # the reader has gone home with a child that ended
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")
            self._process.stdin.close()
        self._process = None

    def said(self, lines: int = 5) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
