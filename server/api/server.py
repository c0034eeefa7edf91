"""The API's server: HTTP on a unix socket, in a thread of its own beside the coordinator's loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fededge_server.store import Store

__all__ = ["PATIENCE", "SOCKET", "ApiServer"]

log = logging.getLogger("coordinator")

SOCKET = "api.sock"

PATIENCE = 30.0
"""Seconds that a request may wait for the loop: it may be merging."""


class ApiServer:
    """Serves one coordinator. The constructor only stores; `start` and `stop` do.

    Args:
        store: the coordinator's folder, which has the socket.
        inbox: the events of its loop.
        patience: seconds that a request may wait for the loop.
    """

    def __init__(
        self, store: Store, inbox: queue.SimpleQueue[Any], patience: float = PATIENCE
    ) -> None:
        self.store = store
        self.inbox = inbox
        self.patience = patience
        self.path = store.folder / SOCKET
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)

    def start(self) -> None:
        """Begin to listen; a federation works without its API, so a failure is only logged."""
        self._thread.start()

    def stop(self) -> None:
        self._ready.wait()
        if self._loop is not None and self._ending is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except (OSError, ImportError) as error:
            log.warning("the API is not available: %s", error)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from fededge_server.api.http_app import serving  # aiohttp takes 0.4 s and 11 MiB

        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        with _bound(self.path) as listening:
            async with serving(listening, self.store, self.inbox, self.patience):
                self._ready.set()
                await self._ending.wait()


@contextlib.contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    """A unix socket for this user alone. The folder's lock is ours: an old socket is stale.

    The path goes through the folder's descriptor: an address holds about 100 characters.
    """
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(f"/proc/self/fd/{folder}/{path.name}")
            path.chmod(0o600)  # before it listens: nobody can have connected
            yield listening
    finally:
        os.close(folder)
        path.unlink(missing_ok=True)
