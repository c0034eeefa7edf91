"""Child processes that never outlive their parent, and that shut down in order on request."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Child"]

# A child must die with this process, even after `kill -9`, when no code of ours runs. So the shell
# starts a background reader on a pipe before it becomes the child: when we die, the kernel closes
# our end, the read fails, and the reader kills the child. An orderly end sends a line first. (A
# process forked from us without an exec shares that end, and keeps the child alive.) Linux's
# PR_SET_PDEATHSIG needs no pipe, but kills the child as soon as the *thread* that started it ends,
# is lost when the child changes its user, and needs Python code between fork and exec, which is
# not safe in a process with threads.
_WITH_READER = 'exec 3<&0 </dev/null; { read -r _ <&3 || kill -9 $$; } & exec "$@" 3<&-'


class Child:
    """A program in a child process, with its output in a log file. The constructor only stores."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command = list(command)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None if the child does not run."""
        return None if self._process is None or self.exit_code is not None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the child runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C reaches only us, and we stop our children in order.
            self._process = subprocess.Popen(
                ["sh", "-c", _WITH_READER, "sh", *self.command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def terminate(self) -> None:
        """Send SIGTERM and return; `stop` waits for the end."""
        if self._process is not None:
            self._process.terminate()

    def stop(self, seconds: float) -> None:
        """Send SIGTERM, wait for `seconds`, then send SIGKILL. Do nothing if it was not started."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):  # the reader ends together with the child
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")
            self._process.stdin.close()
        self._process = None

    def said(self, lines: int = 5) -> str:
        """The last lines of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
