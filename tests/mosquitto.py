"""A Mosquitto on the files that `fededge init` wrote, started as an operator would start it."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fededge._internal.processes import Child
from fededge.broker import mosquitto as _mosquitto

__all__ = ["enterable", "free_port", "running"]

PATIENCE = 20.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def enterable() -> Iterator[Path]:
    """A folder that every user can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="fededge-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextlib.contextmanager
def running(folder: Path, port: int) -> Iterator[Child]:
    """The broker of this folder, which listens on this port.

    Started by root, it becomes a user who must be able to enter the folder: see `enterable`.
    """
    conf = folder / "mosquitto.conf"
    child = Child([_mosquitto.find() or "mosquitto", "-c", str(conf)], folder / "log.txt")
    child.start()
    try:
        _await(child, port)
        yield child
    finally:
        child.kill()


def _await(child: Child, port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if _answers(port):
            return
        assert child.exit_code is None, child.said(20)
        time.sleep(0.05)
    raise AssertionError(f"the broker does not answer:\n{child.said(20)}")


def _answers(port: int) -> bool:
    """Return True if the broker's loop runs: it listens before it can handle a signal.

    The loop closes the connection of a client that speaks neither MQTT nor TLS.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as stranger:
            stranger.sendall(bytes(16))
            stranger.recv(1)
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return True
