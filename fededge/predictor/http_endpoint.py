"""A small HTTP endpoint around a predictor, for apps in other languages on the same machine."""

from __future__ import annotations

import contextlib
import io
import ipaddress
import json
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from fededge import __version__
from fededge.errors import ConfigError, DataError
from fededge.predictor.host_check import host_of, is_known
from fededge.predictor.prediction import Prediction, as_json
from fededge.predictor.predictor import Predictor
from fededge.predictor.request_body import KINDS, TooManyError, UnknownKindError, inputs_of
from fededge.predictor.request_timeout import Patience

__all__ = ["AT_ONCE", "MOST_BYTES", "MOST_CONNECTIONS", "Endpoint"]

log = logging.getLogger(__name__)

MOST_BYTES = 16 * 2**20
# Of a body that is too large, so much is read and forgotten: else its sender, still writing, may
# see a broken connection instead of the answer.
MOST_FORGOTTEN = 8
PIECE = 1 << 16
# Each holds a thread, and the body of a request.
MOST_CONNECTIONS = 32
# A picture of 8192 pixels a side takes some hundred megabytes while it is decoded.
AT_ONCE = min(4, os.cpu_count() or 1)
USE = "POST {} to /; ?top=3 gives the three best labels only; GET /health"


BUSY_SECONDS = 0.05
BUSY_BODY = b'{"error": "too many connections at once; try again in a second"}\n'
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s"
) % (len(BUSY_BODY), BUSY_BODY)


class RequestError(Exception):
    """The request cannot be answered: a status and a sentence."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Endpoint(ThreadingHTTPServer):
    """`run()` answers until `stop()`; one thread for each connection, and a bound on them."""

    daemon_threads = True
    # So many may knock at once; those beyond were refused by the operating system, without a word.
    request_queue_size = 128

    def __init__(
        self,
        predictor: Predictor,
        host: str,
        port: int,
        most_bytes: int = MOST_BYTES,
        most_connections: int = MOST_CONNECTIONS,
        names: Iterable[str] = (),
    ) -> None:
        """`names`: of hosts, beside this machine's own, that a request may be addressed to."""
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
        """Without http.server's look for this machine's name, which may take many seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """One connection more, in a thread of its own, if there is a place for it."""
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.settimeout(BUSY_SECONDS)
            request.recv(PIECE)  # what is not read makes the answer a broken connection
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
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.server_name).is_loopback

    def run(self) -> None:
        with self:
            self.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End `run`; from another thread, since a signal's handler runs inside of it."""
        threading.Thread(target=self.shutdown).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone before its answer is not worth a traceback."""
        log.debug("%s: the connection broke", client_address, exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """GET / and /health, POST / with an image; everything is answered with JSON."""

    server: Endpoint
    protocol_version = "HTTP/1.1"
    server_version = f"fededge/{__version__}"
    timeout = 30  # seconds for a whole request, and for the wait for the next one

    def setup(self) -> None:
        super().setup()
        self.patience = Patience(self.connection, self.timeout)
        self.rfile = io.BufferedReader(self.patience)

    def handle_one_request(self) -> None:
        self.patience.begin()
        super().handle_one_request()

    def do_GET(self) -> None:
        # A body that nobody reads would be taken for the next request.
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True
        self._answer(self._describe)

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def do_POST(self) -> None:
        self._answer(self._predict)

    def _answer(self, work: Any) -> None:
        try:
            status, body = HTTPStatus.OK, work()
        except RequestError as error:
            status, body = error.status, {"error": str(error)}
        except TooManyError as error:
            status, body = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": str(error)}
        except UnknownKindError as error:
            status, body = HTTPStatus.UNSUPPORTED_MEDIA_TYPE, {"error": str(error)}
        except DataError as error:
            status, body = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except ConfigError as error:
            log.error("%s", error)
            status, body = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)}
        except ConnectionError:
            self.close_connection = True
            return
        except Exception:
            log.exception("a request failed")
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            body = {"error": "the request failed; the log of fededge serve-model says why"}
        self._send(status, body)

    def _describe(self) -> dict[str, Any]:
        self._check_host()
        about = self.server.predictor.about
        if self._address().path == "/health":
            return {"status": "ok", "version": about.version}
        self._check_path()
        return {
            "fededge": __version__,
            "use": self._use(),
            "version": about.version,
            "variant": about.variant,
            "labels": about.labels,
            "input": {
                "kind": about.input.kind,
                "shape": about.input.shape,
                "most_bytes": self.server.most_bytes,
            },
            "provider": str(about.provider),
            "model": dict(about.manifest),
        }

    def _predict(self) -> dict[str, Any]:
        data = self._body()
        self._check_host()
        self._check_path()
        top = _top(parse_qs(self._address().query))
        kind = self.server.predictor.about.input.kind
        with self.server.turns:
            answer = self.server.predictor.predict(inputs_of(self._content_type(), data, kind))
        if isinstance(answer, Prediction):
            return as_json(answer, top)
        return {"predictions": [as_json(one, top) for one in answer]}

    def _check_host(self) -> None:
        """Refuse what a web page of somebody else's sends here; its browser says whose it is."""
        said = self.headers.get_all("Host", [])
        if len(said) > 1 or not all(self._is_ours(host) for host in said):
            raise RequestError(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"the request is for {', '.join(said)!r:.200}, which is not a name of this "
                "machine's; ask localhost, or start fededge serve-model with --host-name",
            )
        origin = self.headers.get("Origin")
        if origin is not None and not self._is_ours(origin):
            raise RequestError(
                HTTPStatus.FORBIDDEN,
                f"a page of {origin!r:.200} may not ask here; start fededge serve-model with "
                "--host-name if it is yours",
            )

    def _is_ours(self, text: str) -> bool:
        return is_known(host_of(text), self.connection.getsockname()[0], self.server.names)

    def _content_type(self) -> str:
        """As the request says; the library would answer text/plain where it says nothing."""
        if "Content-Type" in self.headers:
            return self.headers.get_content_type()
        kinds = KINDS[self.server.predictor.about.input.kind]
        raise UnknownKindError(f"the request has no content type; send {kinds}")

    def _address(self) -> SplitResult:
        try:
            return urlsplit(self.path)
        except ValueError as error:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"{self.path!r} is no address") from error

    def _check_path(self) -> None:
        path = self._address().path
        if path != "/":
            text = f"there is no {self.command} {path} here; {self._use()}"
            raise RequestError(HTTPStatus.NOT_FOUND, text)

    def _use(self) -> str:
        return USE.format(KINDS[self.server.predictor.about.input.kind])

    def _body(self) -> bytes:
        """The whole body; a wrong length is refused before anything of it is kept."""
        length, most = self._length(), self.server.most_bytes
        if length > most:
            self.close_connection = True
            self._forget(min(length, MOST_FORGOTTEN * most))
            raise RequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"{length:,} bytes are more than the {most:,} that are taken; send a smaller image",
            )
        try:
            data = self.rfile.read(length)
        except TimeoutError:
            data = b""
        if len(data) < length:
            self.close_connection = True
            text = f"the {length:,} bytes that the request announced did not come"
            raise RequestError(HTTPStatus.BAD_REQUEST, text)
        return data

    def _length(self) -> int:
        """What the request says about its length; a body in chunks has none."""
        said = set(self.headers.get_all("Content-Length", []))
        text = said.pop() if said and "Transfer-Encoding" not in self.headers else ""
        if said or not (text.isascii() and text.isdecimal()):
            self.close_connection = True
            if said and text:
                raise RequestError(HTTPStatus.BAD_REQUEST, "the request says two lengths")
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "the request must say its length")
        return int(text[:20])

    def _forget(self, length: int) -> None:
        with contextlib.suppress(TimeoutError):
            while length > 0 and (piece := self.rfile.read(min(PIECE, length))):
                length -= len(piece)

    def _send(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        data = json.dumps(body, ensure_ascii=False).encode() + b"\n"
        self.connection.settimeout(self.timeout)
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses, also as JSON, and always with a status."""
        self.close_connection = True
        self.request_version = self.protocol_version
        status = HTTPStatus(code)
        self._send(status, {"error": message or explain or status.phrase})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        log.debug("%s %s", self.address_string(), format % args)


def _top(query: dict[str, list[str]]) -> int | None:
    text = query.get("top", [""])[-1]
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0):
        raise RequestError(HTTPStatus.BAD_REQUEST, f"top must be a number from 1, not {text!r}")
    return int(text[:9])
