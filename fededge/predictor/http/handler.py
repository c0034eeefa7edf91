"""The HTTP requests of an endpoint: their checks, and their answers as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from fededge import __version__
from fededge.errors import ConfigError, DataError
from fededge.predictor.http.host_check import host_of, is_known
from fededge.predictor.http.request_body import KINDS, TooManyError, UnknownKindError, inputs_of
from fededge.predictor.http.request_timeout import DeadlineReader
from fededge.predictor.prediction import Prediction, as_json

if TYPE_CHECKING:
    from fededge.predictor.http.endpoint import Endpoint

__all__ = ["Handler", "RequestError"]

log = logging.getLogger(__name__)

# A body that is too large is read and discarded, up to this many times the limit: else the
# client, still sending, may see a broken connection instead of the answer.
DISCARDED = 8
PIECE = 1 << 16
USE = "POST {} to /; ?top=3 gives the three best labels only; GET /health"


class RequestError(Exception):
    """A request that cannot be answered: an HTTP status and an error text."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """GET / and /health, POST / with an input; every answer is JSON."""

    server: Endpoint
    protocol_version = "HTTP/1.1"
    server_version = f"fededge/{__version__}"
    timeout = 30  # seconds for a whole request, and for the wait between requests
    wbufsize = 1 << 16  # headers and body leave together: the second of two segments waits 40 ms
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.reader = DeadlineReader(self.connection, self.timeout)
        self.rfile = io.BufferedReader(self.reader)

    def handle_one_request(self) -> None:
        self.reader.begin()
        super().handle_one_request()

    def do_GET(self) -> None:
        # An unread body would be parsed as the next request.
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
        """Refuse requests of foreign web pages, by the browser's `Host` and `Origin` headers."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) > 1 or not all(self._is_ours(host) for host in hosts):
            raise RequestError(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"the request is for {', '.join(hosts)!r:.200}, which is not a name of this "
                "machine; use localhost, or start fededge serve-model with --host-name",
            )
        origin = self.headers.get("Origin")
        if origin is not None and not self._is_ours(origin):
            raise RequestError(
                HTTPStatus.FORBIDDEN,
                f"pages of {origin!r:.200} may not use this endpoint; if the page is yours, start "
                "fededge serve-model with --host-name",
            )

    def _is_ours(self, text: str) -> bool:
        return is_known(host_of(text), self.connection.getsockname()[0], self.server.names)

    def _content_type(self) -> str:
        """The content type of the request; the library would assume text/plain if it is missing."""
        if "Content-Type" in self.headers:
            return self.headers.get_content_type()
        kinds = KINDS[self.server.predictor.about.input.kind]
        raise UnknownKindError(f"the request has no content type; send {kinds}")

    def _address(self) -> SplitResult:
        try:
            return urlsplit(self.path)
        except ValueError as error:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"{self.path!r} is not a URL") from error

    def _check_path(self) -> None:
        path = self._address().path
        if path != "/":
            text = f"there is no {self.command} {path} here; {self._use()}"
            raise RequestError(HTTPStatus.NOT_FOUND, text)

    def _use(self) -> str:
        return USE.format(KINDS[self.server.predictor.about.input.kind])

    def _body(self) -> bytes:
        """Read the whole body; a wrong length is refused before the body is read."""
        length, most = self._length(), self.server.most_bytes
        if length > most:
            self.close_connection = True
            self._discard(min(length, DISCARDED * most))
            raise RequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the request has {length:,} bytes, the limit is {most:,}; send a smaller image",
            )
        try:
            data = self.rfile.read(length)
        except TimeoutError:
            data = b""
        if len(data) < length:
            self.close_connection = True
            text = f"the request announced {length:,} bytes, and they did not all arrive"
            raise RequestError(HTTPStatus.BAD_REQUEST, text)
        return data

    def _length(self) -> int:
        """The request's Content-Length; a chunked body has none and is refused."""
        lengths = set(self.headers.get_all("Content-Length", []))
        text = lengths.pop() if lengths and "Transfer-Encoding" not in self.headers else ""
        if lengths or not (text.isascii() and text.isdecimal()):
            self.close_connection = True
            if lengths and text:
                raise RequestError(HTTPStatus.BAD_REQUEST, "the request has two Content-Length")
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "the request needs a Content-Length")
        return int(text[:20])

    def _discard(self, length: int) -> None:
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
        """Answer http.server's own errors as JSON too."""
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
        raise RequestError(HTTPStatus.BAD_REQUEST, f"top must be at least 1, got {text!r}")
    return int(text[:9])
