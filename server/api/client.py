"""The operator's way to a coordinator: its API while it runs, its folder while it is down."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from fededge.config import CoordinatorConfig
from fededge.errors import RefusedError, StoreError
from fededge.storage.files import lock_folder
from fededge_server.api import folder_views
from fededge_server.api.schema import DeviceView, HistoryView, OutcomeView, StatusView
from fededge_server.api.server import PATIENCE, SOCKET
from fededge_server.store import Store

__all__ = ["FleetClient"]

T = TypeVar("T")

MOST_BYTES = 256 * 1024 * 1024
"""Largest answer."""

START_PATIENCE = 10.0
"""Seconds that a coordinator may run before it listens."""


class FleetClient:
    """One federation's coordinator, by its state folder.

    `patience`: seconds to wait for a coordinator that runs and does not listen yet.
    """

    def __init__(self, config: CoordinatorConfig, patience: float = START_PATIENCE) -> None:
        self.config = config
        self.folder = Path(config.state)
        self.patience = patience

    def order(self, order: Any) -> OutcomeView:
        """Give an order, which is durable when this returns."""
        deadline = time.monotonic() + self.patience
        while True:
            with self._reached() as connection:
                if connection is not None:
                    body = msgspec.json.encode(order)
                    return _request(connection, "POST", "/orders", OutcomeView, body)
            if time.monotonic() >= deadline or not self._busy():
                break
            time.sleep(0.1)
        with self._taken() as store:
            outcome = store.order(order, time.time())
        return OutcomeView(changed=outcome.changed, text=outcome.text)

    def status(self) -> StatusView:
        def offline(store: Store) -> StatusView:
            return folder_views.status(store, self.config)

        return self._read("/status", StatusView, offline)

    def devices(self) -> list[DeviceView]:
        return self._read("/devices", list[DeviceView], folder_views.devices)

    def device(self, name: str) -> DeviceView:
        def offline(store: Store) -> DeviceView:
            return folder_views.device(store, name)

        return self._read(f"/devices/{quote(name, safe='')}", DeviceView, offline)

    def history(self) -> HistoryView:
        return self._read("/history", HistoryView, folder_views.history)

    def _read(self, path: str, kind: type[T], offline: Callable[[Store], T]) -> T:
        with self._reached() as connection:
            if connection is not None:
                return _request(connection, "GET", path, kind)
        return offline(self._store())

    @contextlib.contextmanager
    def _reached(self) -> Iterator[http.client.HTTPConnection | None]:
        """A connection with the coordinator; None if it is down."""
        connection = UnixConnection(self.folder / SOCKET)
        try:
            connection.connect()
        except PermissionError:
            raise RefusedError(
                f"{self.folder / SOCKET}: only the coordinator's user and root may use it; try sudo"
            ) from None
        except OSError:
            yield None
            return
        with contextlib.closing(connection):
            yield connection

    @contextlib.contextmanager
    def _taken(self) -> Iterator[Store]:
        """The folder of a coordinator that is down, for us alone."""
        store = self._store()
        if self._busy():
            raise RefusedError(
                f"{self.folder}: the coordinator runs but does not listen: it starts, or waits "
                "for its broker; try again, or stop it first"
            )
        store.open()
        try:
            yield store
        finally:
            store.close()
            _give_to_owner(self.folder)

    def _busy(self) -> bool:
        try:
            lock_folder(self.folder, "a coordinator").close()
        except StoreError:
            return True
        return False

    def _store(self) -> Store:
        store = Store(self.folder)
        if not store.path.exists():
            raise StoreError(
                f"'{self.folder}' holds no journal: the coordinator has not run here yet"
            )
        return store


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket. The path goes through the folder's descriptor: it may be long."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE + 5.0)
        self.path = path

    def connect(self) -> None:
        folder = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(f"/proc/self/fd/{folder}/{self.path.name}")
        except OSError:
            self.sock.close()
            raise
        finally:
            os.close(folder)


def _request(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    kind: type[T],
    body: bytes | None = None,
) -> T:
    """The answer to a request; RefusedError with the coordinator's sentence if it refuses."""
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        answer = response.read(MOST_BYTES)
        if response.status == http.HTTPStatus.OK:
            return msgspec.json.decode(answer, type=kind)
        reason = msgspec.json.decode(answer, type=dict[str, str])["error"]
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise RefusedError(
            f"the coordinator does not answer ({error}); see its log, and try again"
        ) from None
    raise RefusedError(reason)


def _give_to_owner(folder: Path) -> None:
    """Files that root has made belong to the folder's owner: the service must open them."""
    owner = folder.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        for path in folder.iterdir():
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
