"""A local broker for the demo and the tests: mosquitto if it is installed, else amqtt."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fededge._internal.processes import Child
from fededge.broker import mosquitto as _mosquitto
from fededge.errors import TransportError
from fededge.storage.files import disk_error, write_private

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Broker"]

_START_SECONDS = 20.0
_STOP_SECONDS = 5.0
_PORT_TRIES = 5

_REMEDIES = {"mosquitto": "`apt install mosquitto`", "python": "`pip install fededge[broker]`"}


class Broker:
    """A broker in a child process. The constructor only stores; `start` and `stop` do the work.

    Args:
        folder: holds its configuration, log and database; created if missing.
        kind: "auto" takes mosquitto if it is installed, else the Python one; `start` sets it to the
            choice. The Python one has no ACLs and keeps nothing across restarts.
        host: the address to listen on.
        port: 0 chooses a free port; the first `start` sets it, and later ones reuse it.
        users: passwords by user name; without them anyone may connect.
        acl: the text of a mosquitto ACL file.
        persistent: keep retained messages and sessions on disk.
    """

    def __init__(
        self,
        folder: Path,
        kind: Literal["auto", "mosquitto", "python"] = "auto",
        host: str = "127.0.0.1",
        port: int = 0,
        users: Mapping[str, str] | None = None,
        acl: str | None = None,
        persistent: bool = False,
    ) -> None:
        self.folder = folder
        self.kind = kind
        self.host = host
        self.port = port
        self.users = users
        self.acl = acl
        self.persistent = persistent
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        """The broker's process id, or None if it does not run."""
        return None if self._child is None else self._child.pid

    @property
    def protocol(self) -> Literal["5", "3.1.1"]:
        """The newest MQTT version that the broker speaks."""
        return "5" if self._choose() == "mosquitto" else "3.1.1"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    def start(self) -> None:
        """Start the broker and wait until it answers a CONNECT; TransportError if it does not."""
        if self.pid is not None:
            raise TransportError(f"the broker runs already (process {self.pid}); stop it first")
        self.stop()
        self.kind = self._choose()
        passwords = self._write_files()
        wanted = self.port
        for _ in range(_PORT_TRIES):
            before = self._spawn(wanted, passwords)
            if self._answers():
                return
            self.kill()
            tail = _tail(self.log, before)
            self.port = wanted
            # Another program may take the free port before the broker binds it.
            if wanted != 0 or "address already in use" not in tail.lower():
                break
        raise TransportError(f"the {self.kind} broker did not start; the end of {self.log}: {tail}")

    def stop(self) -> None:
        """Stop the broker, by force if it takes too long. Do nothing if it does not run."""
        if self._child is not None:
            self._child.stop(_STOP_SECONDS)
            self._child = None

    def kill(self) -> None:
        """Kill the broker (SIGKILL). `start` restarts it on the same port."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _choose(self) -> Literal["mosquitto", "python"]:
        simple = self.acl is None and not self.persistent
        if self.kind == "python" and not simple:
            raise TransportError(
                "the python broker has no ACLs and keeps nothing across restarts; use mosquitto "
                f"({_REMEDIES['mosquitto']}) for these"
            )
        mosquitto = self.kind != "python"
        python = self.kind != "mosquitto" and simple
        if mosquitto and _mosquitto.find() is not None:
            return "mosquitto"
        if python and importlib.util.find_spec("amqtt") is not None:
            return "python"
        may = {"mosquitto": mosquitto, "python": python}
        remedies = " or ".join(_REMEDIES[kind] for kind in may if may[kind])
        raise TransportError(f"there is no MQTT broker to start; install one: {remedies}")

    def _write_files(self) -> Path | None:
        """Write the broker's files; return the password file, if there is one."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.log.touch(mode=0o600)
        except OSError as error:
            raise disk_error(self.folder, error) from error
        if self.acl is not None:
            write_private(self._path("acl"), self.acl.encode())
        if self.users is None:
            return None
        passwords = self._path("passwords")
        write_private(passwords, _mosquitto.password_file(self.users).encode())
        return passwords

    def _path(self, name: str) -> Path:
        return self.folder.resolve() / name

    def _spawn(self, wanted: int, passwords: Path | None) -> int:
        """Start the child; return the length of the log before it."""
        self.port = _free_port(self.host, wanted)
        before = self.log.stat().st_size
        self._child = Child(self._command(passwords), self.log)
        self._child.start()
        return before

    def _command(self, passwords: Path | None) -> list[str]:
        if self.kind == "python":
            program = [sys.executable, "-m", "fededge.broker.python_broker"]
            users = [] if passwords is None else [str(passwords)]
            return [*program, self.host, str(self.port), *users]
        acl = None if self.acl is None else self._path("acl")
        database = self.folder.resolve() if self.persistent else None
        text = _mosquitto.configuration(self.host, self.port, passwords, acl, database)
        path = self._path("mosquitto.conf")
        write_private(path, text.encode())
        return [_mosquitto.find() or "mosquitto", "-c", str(path)]

    def _answers(self) -> bool:
        """Wait until the broker accepts us; False if it died, refuses us, or takes too long."""
        user = next(iter(self.users.items()), None) if self.users is not None else None
        deadline = time.monotonic() + _START_SECONDS
        while self.pid is not None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                return _handshake(self.host, self.port, user)
            time.sleep(0.01)
        return False


def _free_port(host: str, wanted: int) -> int:
    """Return `wanted` if it can be bound, or any free port for 0.

    It is checked first, because another broker on that port would answer our CONNECT as well.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, wanted), family=family) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "is in use; stop the program that uses it, or choose port 0 for a free one"
        else:
            why = f"cannot be listened on ({error.strerror})"
        raise TransportError(f"the broker's address {host}:{wanted} {why}") from error


def _handshake(host: str, port: int, user: tuple[str, str] | None) -> bool:
    """Return True if a CONNECT is accepted; OSError if there is no answer yet.

    The packet is built by hand in MQTT 3.1.1, which every broker speaks: no client, no thread.
    """
    fields = ["", *(user or ())]
    body = b"\x00\x04MQTT\x04" + (b"\x02" if user is None else b"\xc2") + struct.pack("!H", 10)
    for field in fields:
        data = field.encode()
        body += struct.pack("!H", len(data)) + data
    with socket.create_connection((host, port), timeout=2.0) as connection:
        connection.sendall(b"\x10" + _length(len(body)) + body)
        answer = connection.recv(4)
        if len(answer) < 4:
            raise ConnectionResetError
        accepted = answer == b"\x20\x02\x00\x00"
        if accepted:
            connection.sendall(b"\xe0\x00")
    return accepted


def _length(number: int) -> bytes:
    """MQTT's variable byte integer: seven bits per byte, lowest first."""
    low, high = number % 128, number // 128
    return bytes([low]) if high == 0 else bytes([low | 128]) + _length(high)


def _tail(path: Path, start: int) -> str:
    """The last lines of a log, from `start` on, as one line."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return " | ".join([line.strip() for line in lines if line.strip()][-5:]) or "(empty)"
