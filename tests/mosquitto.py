"""A Mosquitto on the files that `fededge init` wrote, started as an operator would start it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from fededge.processes import Child
from fededge.transport import _mosquitto

__all__ = ["free_port", "running"]

PATIENCE = 20.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def running(folder: Path, port: int) -> Iterator[Child]:
    """The broker of this folder, which listens on this port."""
    conf = folder / "mosquitto.conf"
    if os.geteuid() == 0:
        # Started by root, it would become a user who cannot enter the folders of a test.
        conf = folder / "as-root.conf"
        conf.write_text((folder / "mosquitto.conf").read_text() + "user root\n")
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
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        assert child.exit_code is None, child.said(20)
        time.sleep(0.05)
    raise AssertionError(f"the broker does not answer:\n{child.said(20)}")
