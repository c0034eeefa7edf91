"""A small HTTP endpoint around a predictor, for apps in other languages on the same machine."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Iterable
from http.server import ThreadingHTTPServer
from typing import Any

from fededge.errors import ConfigError
from fededge.predictor.http.handler import Handler
from fededge.predictor.http.host_check import host_of
from fededge.predictor.predictor import Predictor

__all__ = ["AT_ONCE", "MAX_BODY_BYTES", "MAX_CONNECTIONS", "Endpoint"]

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 * 2**20
# Each connection holds a thread and the body of a request.
MAX_CONNECTIONS = 32
# Decoding an image of 8192 pixels a side takes some hundred megabytes.
AT_ONCE = min(4, os.cpu_count() or 1)

BUSY_SECONDS = 0.05
BUSY_READ = 1 << 16
BUSY_BODY = b'{"error": "too many connections at once; try again in a second"}\n'
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s"
) % (len(BUSY_BODY), BUSY_BODY)


class Endpoint(ThreadingHTTPServer):
    """The server: `run()` serves until `stop()`, with a bounded number of connection threads."""

    daemon_threads = True
    # Backlog of the listening socket; the operating system refuses connections beyond it.
    request_queue_size = 128

    def __init__(
        self,
        predictor: Predictor,
        host: str,
        port: int,
        most_bytes: int = MAX_BODY_BYTES,
        most_connections: int = MAX_CONNECTIONS,
        names: Iterable[str] = (),
    ) -> None:
        """`names`: further host names that a request may be addressed to."""
        self.predictor = predictor
        self.names = {host_of(name) for name in (host, *names)} - {""}
        self.most_bytes = most_bytes
        self.places = threading.BoundedSemaphore(most_connections)
        self.turns = threading.BoundedSemaphore(AT_ONCE)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{host}:{port}: cannot listen there ({reason})") from error

    def server_bind(self) -> None:
        """Bind without http.server's DNS lookup of this machine, which may take many seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, or answer 503 if there are too many."""
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.settimeout(BUSY_SECONDS)
            request.recv(BUSY_READ)  # unread data would reset the connection before the answer
            request.sendall(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}/"

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the endpoint."""
        return ipaddress.ip_address(self.server_name).is_loopback

    def run(self) -> None:
        with self:
            self.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End `run`, from another thread, because a signal handler runs inside `run`."""
        threading.Thread(target=self.shutdown).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log at debug level: a client that disconnects before its answer is no error."""
        log.debug("%s: the connection broke", client_address, exc_info=True)
