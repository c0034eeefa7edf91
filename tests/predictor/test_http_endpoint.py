"""The HTTP endpoint: a real server, real requests, and JSON for everything that goes wrong."""

from __future__ import annotations

import http.client
import io
import json
import socket
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from fededge import Predictor
from fededge.errors import ConfigError, DataError
from fededge.predictor.http.endpoint import AT_ONCE, Endpoint
from fededge.predictor.http.handler import Handler
from fededge.predictor.http.request_body import inputs_of
from tests.predictor.conftest import LABELS, Maker

MOST_BYTES = 20_000


@pytest.fixture
def server(models: Path) -> Iterator[Endpoint]:
    endpoint = Endpoint(Predictor(models), "127.0.0.1", 0, MOST_BYTES)
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    yield endpoint
    endpoint.stop()
    thread.join(30)
    assert not thread.is_alive()


def ask(
    server: Endpoint, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, names)
    answer = connection.getresponse()
    assert answer.getheader("Content-Type") == "application/json; charset=utf-8"
    data = answer.read()
    connection.close()
    return answer.status, json.loads(data) if data else None


def raw(server: Endpoint, request: bytes) -> bytes:
    """Send bytes, and return the answer up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", server.server_port), 30) as link:
        link.sendall(request)
        link.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: link.recv(65536), b""))


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def test_a_picture_gets_its_labels(server: Endpoint, colour: Maker, pixels: np.ndarray) -> None:
    status, answer = ask(server, "POST", "/", png(pixels), Content_Type="image/png")
    expected = dict(zip(LABELS, colour.expected(1, pixels), strict=True))
    assert status == 200
    assert {e["label"]: e["probability"] for e in answer["top"]} == pytest.approx(
        expected, abs=1e-6
    )
    assert answer["label"] == max(expected, key=lambda label: expected[label])
    assert answer["probability"] == answer["top"][0]["probability"]
    assert answer["version"] == server.predictor.version


@pytest.mark.parametrize("kind", ["application/octet-stream", "image/jpeg"])
def test_the_bytes_say_what_they_are(server: Endpoint, pixels: np.ndarray, kind: str) -> None:
    """As curl sends them, or under another image's name."""
    status, answer = ask(server, "POST", "/?top=2", png(pixels), Content_Type=kind)
    assert (status, len(answer["top"])) == (200, 2)


def test_pixels_as_json_get_the_answer_of_the_picture(server: Endpoint, pixels: np.ndarray) -> None:
    _, picture = ask(server, "POST", "/", png(pixels), Content_Type="image/png")
    one, many = (json.dumps(array.tolist()).encode() for array in (pixels, pixels[None]))
    kind = "application/json; charset=utf-8"
    assert ask(server, "POST", "/", one, Content_Type=kind) == (200, picture)
    assert ask(server, "POST", "/", many, Content_Type=kind) == (200, {"predictions": [picture]})


def test_it_describes_itself(server: Endpoint) -> None:
    status, about = ask(server, "GET", "/")
    assert status == 200
    assert about["labels"] == list(LABELS)
    expected = {"kind": "image", "shape": [3, 8, 10], "most_bytes": MOST_BYTES}
    assert (about["input"], about["variant"]) == (expected, "fp32")
    assert about["model"]["device"] == "camera-7"
    assert "runs the model" in about["provider"]
    health = {"status": "ok", "version": server.predictor.version}
    assert ask(server, "GET", "/health") == (200, health)
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


JSON, PNG, TEXT = "application/json", "image/png", "text/plain"


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status", "sentence"),
    [
        ("GET", "/labels", None, TEXT, 404, "there is no GET /labels here; POST image/png"),
        ("GET", "/../../etc/passwd", None, TEXT, 404, "there is no GET /../../etc/passwd here"),
        ("POST", "/predict", b"x", PNG, 404, "there is no POST /predict here"),
        ("POST", "/health", b"x", PNG, 404, "there is no POST /health here"),
        ("POST", "/", b"x", TEXT, 415, "the content type text/plain is not supported"),
        ("POST", "/", b"no image", PNG, 400, "the bytes given: not a readable image"),
        ("POST", "/", b"", PNG, 400, "the bytes given: not a readable image"),
        ("POST", "/", b"[1, 2", JSON, 400, "the body is not JSON"),
        ("POST", "/", b"[" * 19_000, JSON, 400, "the body is not JSON"),
        ("POST", "/", b"\xff", JSON, 400, "the body is not JSON"),
        ("POST", "/", b"[[1, 2], [3]]", JSON, 400, "the JSON is not a rectangular array"),
        ("POST", "/", b"[[0.5]]", JSON, 400, "whole numbers from 0 to 255"),
        ("POST", "/", b"[[256]]", JSON, 400, "whole numbers from 0 to 255"),
        ("POST", "/", b"[[true]]", JSON, 400, "whole numbers from 0 to 255"),
        ("POST", "/", b"[" * 70 + b"]" * 70, JSON, 400, "not a rectangular array"),
        ("POST", "/", b"[" * 40 + b"1" + b"]" * 40, JSON, 400, "one image has 2 or 3 dimensions"),
        ("POST", "/", b"[[" + b"9" * 40 + b"]]", JSON, 400, "whole numbers from 0 to 255"),
        ("POST", "/", b"[[]]", JSON, 400, "an array of shape (1, 0) has no pixels"),
        (
            "POST",
            "/",
            json.dumps([[[[1]]]] * 1025).encode(),
            JSON,
            413,
            "1,025 inputs, the limit is",
        ),
        ("POST", "/", b'{"a": 1}', JSON, 400, "whole numbers from 0 to 255"),
        ("POST", "/", b"[[[[[1]]]]]", JSON, 400, "one image has 2 or 3 dimensions"),
        ("POST", "/?top=no", b"x", PNG, 400, "top must be at least 1, got 'no'"),
        ("POST", "/?top=0", b"x", PNG, 400, "top must be at least 1, got '0'"),
        ("POST", "/", b"x" * (MOST_BYTES + 1), PNG, 413, "20,001 bytes, the limit is 20,000"),
        ("POST", "/", b"x" * 40 * MOST_BYTES, PNG, 413, "800,000 bytes, the limit is"),
        ("PUT", "/", b"x", PNG, 501, "Unsupported method ('PUT')"),
    ],
)
def test_a_mistake_gets_a_sentence(
    server: Endpoint,
    pixels: np.ndarray,
    method: str,
    path: str,
    body: bytes | None,
    kind: str,
    status: int,
    sentence: str,
) -> None:
    """The endpoint keeps serving afterwards."""
    got, answer = ask(server, method, path, body, Content_Type=kind)
    assert got == status
    assert answer.keys() == {"error"}
    assert sentence in answer["error"]
    assert ask(server, "POST", "/", png(pixels), Content_Type=PNG)[0] == 200


CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
LENGTHS = b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 1"
HIDDEN = b"GET /hidden HTTP/1.1\r\n\r\n...."


@pytest.mark.parametrize(
    ("request_", "status", "sentence"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b" 411 ", b"needs a Content-Length"),
        (b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b" 411 ", b"needs a Content-Length"),
        (b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nxx", b" 400 ", b"announced 9 bytes"),
        (b"POST / HTTP/1.1\r\nContent-Length: 9" + b"9" * 99 + b"\r\n\r\n", b" 413 ", b"limit is"),
        (b"nonsense\r\n\r\n", b" 400 ", b"Bad request syntax"),
        (b"GET / HTTP/2.0\r\n\r\n", b" 505 ", b"Invalid HTTP version"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b" 414 ", b"URI Too Long"),
        (CHUNKED + b"\r\n5\r\nhello\r\n0\r\n\r\n", b" 411 ", b"needs a Content-Length"),
        (CHUNKED + b"Content-Length: 1\r\n\r\nx", b" 411 ", b"needs a Content-Length"),
        (LENGTHS + b"\r\n\r\nxxx", b" 400 ", b"two Content-Length"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", b" 415 ", b"no content type"),
        (b"GET http://[/ HTTP/1.1\r\n\r\n", b" 400 ", b"'http://[/' is not a URL"),
        (b"GET /health HTTP/1.1\r\nContent-Length: 28\r\n\r\n" + HIDDEN, b" 200 ", b"ok"),
    ],
    ids=[
        "no length",
        "negative",
        "too short",
        "huge",
        "nonsense",
        "another HTTP",
        "long path",
        "chunked",
        "chunked and a length",
        "two lengths",
        "no type",
        "no address",
        "a body that is not read",
    ],
)
def test_a_broken_request_is_answered_and_the_connection_closed(
    server: Endpoint, request_: bytes, status: bytes, sentence: bytes
) -> None:
    answer = raw(server, request_)
    assert answer.startswith(b"HTTP/1.1" + status)
    assert sentence in answer
    assert answer.count(b"HTTP/1.1 ") == 1  # nothing of a body is taken for a request


def test_a_client_that_stops_in_the_middle_is_let_go(
    server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_port), 30) as link:
        link.sendall(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nxx")
        answer = b"".join(iter(lambda: link.recv(65536), b""))
    assert b"announced 9 bytes, and they did not all arrive" in answer


def test_a_client_that_sends_a_byte_now_and_then_is_let_go_too(
    server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline covers the whole request, header and body, not each byte."""
    monkeypatch.setattr(Handler, "timeout", 0.3)
    for head, answer in (
        (b"POST / HTTP/1.1\r\nContent-Length: 5000\r\n\r\n", b"did not all arrive"),
        (b"POST / HTTP/1.1\r\nContent-Length: 50000\r\n\r\n", b" 413 "),
        (b"POST / HTTP/1.1\r\nX: ", b""),
    ):
        with socket.create_connection(("127.0.0.1", server.server_port), 0.02) as link:
            link.sendall(head)
            assert answer in trickle(link)


def trickle(link: socket.socket) -> bytes:
    """Send a byte every 20 ms for 20 s at most, and return the server's answer."""
    got = b""
    for _ in range(1000):
        try:
            link.sendall(b"x")
            piece = link.recv(65536)
        except TimeoutError:
            continue
        except OSError:
            return got
        if not piece:
            return got
        got += piece
    raise AssertionError("the server goes on listening")


def test_clients_that_come_at_once_are_all_answered(models: Path) -> None:
    """All connect before the server accepts: the operating system must refuse none."""
    endpoint = Endpoint(Predictor(models), "127.0.0.1", 0)
    address = "127.0.0.1", endpoint.server_port
    links = [socket.create_connection(address, 30) for _ in range(30)]
    for link in links:
        link.sendall(b"GET /health HTTP/1.0\r\n\r\n")
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    try:
        assert all(link.recv(65536).startswith(b"HTTP/1.1 200 ") for link in links)
    finally:
        for link in links:
            link.close()
        endpoint.stop()
        thread.join(30)


def test_few_pictures_are_decoded_at_once(
    server: Endpoint, pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding one may take some hundred megabytes, while a connection costs a client nothing."""
    predict, lock = server.predictor.predict, threading.Lock()
    here, most = 0, 0

    def counted(inputs: Any) -> Any:
        nonlocal here, most
        with lock:
            here += 1
            most = max(most, here)
        time.sleep(0.02)
        with lock:
            here -= 1
        return predict(inputs)

    monkeypatch.setattr(server.predictor, "predict", counted)
    with ThreadPoolExecutor(12) as pool:
        sent = [
            pool.submit(ask, server, "POST", "/", png(pixels), Content_Type=PNG) for _ in range(24)
        ]
    assert {future.result()[0] for future in sent} == {200}
    assert 1 <= most <= AT_ONCE


def test_words_where_pixels_belong_take_no_memory() -> None:
    """numpy would pad every string to the longest one."""
    body = json.dumps(["x" * 10_000, *[""] * 100_000]).encode()
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="whole numbers from 0 to 255"):
            inputs_of(JSON, body, "image")
        assert tracemalloc.get_traced_memory()[1] < 30 * len(body)
    finally:
        tracemalloc.stop()


def test_a_head_request_gets_no_body(server: Endpoint) -> None:
    assert ask(server, "HEAD", "/health") == (200, None)
    assert ask(server, "HEAD", "/labels") == (404, None)


def test_an_ipv6_address_works(models: Path) -> None:
    endpoint = Endpoint(Predictor(models), "::1", 0)
    endpoint.server_close()
    assert endpoint.url == f"http://[::1]:{endpoint.server_port}/"


def test_one_connection_serves_many_requests(server: Endpoint, pixels: np.ndarray) -> None:
    """Also after a mistake whose body was read."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    statuses = []
    for body in (png(pixels), b"no image", png(pixels)):
        connection.request("POST", "/", body, {"Content-Type": "image/png"})
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
        assert answer.getheader("Connection") is None
    connection.close()
    assert statuses == [200, 400, 200]


def test_headers_and_body_come_together(server: Endpoint, pixels: np.ndarray) -> None:
    """On a kept-alive connection the second of two segments would wait 40 ms for the first."""
    body = png(pixels)
    head = f"POST / HTTP/1.1\r\nContent-Type: image/png\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), 30) as link:
        for _ in range(5):
            link.sendall(head.encode() + body)
            headers, _, answer = link.recv(1 << 16).partition(b"\r\n\r\n")
            assert headers.startswith(b"HTTP/1.1 200")
            assert json.loads(answer)["label"] in LABELS


def test_requests_at_once_each_get_their_own_answer(
    server: Endpoint, colour: Maker, models: Path
) -> None:
    """80 requests of 8 clients, while a new model takes over."""
    images = np.random.default_rng(5).integers(0, 256, (80, 3, 8, 10), np.uint8)

    def one(number: int) -> tuple[int, Any]:
        if number == 20:
            colour.export(models, seed=2, round_=35)
        return ask(server, "POST", "/", png(images[number]), Content_Type="image/png")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(80)))
    for pixels, (status, answer) in zip(images, answers, strict=True):
        assert status == 200
        seed = 1 if answer["version"].startswith("000034") else 2
        got = {entry["label"]: entry["probability"] for entry in answer["top"]}
        expected = dict(zip(LABELS, colour.expected(seed, pixels), strict=True))
        assert got == pytest.approx(expected, abs=1e-6)


def test_one_connection_too_many_gets_503(models: Path, pixels: np.ndarray) -> None:
    """Two clients hold both places; when one leaves, the next is answered."""
    endpoint = Endpoint(Predictor(models), "127.0.0.1", 0, most_connections=2)
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    port = endpoint.server_port
    held = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for _ in range(2)]
    try:
        for connection in held:
            connection.request("GET", "/health")
            assert connection.getresponse().read()
        answer = raw(endpoint, b"GET /health HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"].startswith("too many conn")
        held[0].close()
        while b" 503 " in raw(endpoint, b"GET /health HTTP/1.0\r\n\r\n"):
            pass  # until the server has noticed; the test's time limit bounds it
    finally:
        for connection in held:
            connection.close()
        endpoint.stop()
        thread.join(30)


def test_an_unexpected_error_is_logged_and_not_shown(
    server: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("secret insides")

    monkeypatch.setattr(server.predictor, "predict", fail)
    status, answer = ask(server, "POST", "/", b"x", Content_Type="image/png")
    sentence = "the request failed; the log of fededge serve-model says why"
    assert (status, answer) == (500, {"error": sentence})
    assert "secret insides" in caplog.text


def test_a_package_that_the_server_lacks_is_a_server_error_with_its_remedy(
    server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "PIL" or name.startswith("PIL.")]:
        monkeypatch.setitem(sys.modules, name, None)
    status, answer = ask(server, "POST", "/", b"x", Content_Type="image/png")
    assert status == 500
    assert answer["error"].endswith("pip install pillow")


def test_a_port_that_is_taken_gets_a_sentence(server: Endpoint) -> None:
    port = server.server_port
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: cannot listen there .Address alread"):
        Endpoint(server.predictor, "127.0.0.1", port)
    with pytest.raises(ConfigError, match="70000: cannot listen there"):
        Endpoint(server.predictor, "127.0.0.1", 70000)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8117", 200),
        ("127.0.0.1", 200),
        ("localhost:80", 200),
        ("LocalHost.", 200),
        ("box.localhost", 200),
        ("[::1]:8117", 200),
        ("127.1.2.3", 200),
        ("evil.example", 421),
        ("evil.example:8117", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("192.168.1.5", 421),
        ("0.0.0.0", 421),
        ("", 421),
        ("[", 421),
        ("evil.example@127.0.0.1:8117x", 421),
    ],
)
def test_only_this_machines_own_names_are_answered(
    server: Endpoint, pixels: np.ndarray, host: str, status: int
) -> None:
    """A page that uses DNS rebinding gets neither the model nor an answer."""
    for method, path, body in (("GET", "/", None), ("GET", "/health", None), ("POST", "/", b"x")):
        got, answer = ask(server, method, path, body, Host=host, Content_Type=PNG)
        assert got == (400 if status == 200 and method == "POST" else status)
        assert status == 200 or "is not a name of this machine" in answer["error"]


def test_a_request_with_two_hosts_is_refused(server: Endpoint) -> None:
    both = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert b" 421 " in raw(server, both).split(b"\r\n")[0]
    assert b" 200 " in raw(server, b"GET / HTTP/1.0\r\n\r\n").split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8117", 200),
        ("http://localhost:5173", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_a_page_of_another_site_is_refused(server: Endpoint, origin: str, status: int) -> None:
    got, answer = ask(server, "GET", "/", Origin=origin)
    assert got == status
    assert status == 200 or "may not use this endpoint" in answer["error"]


def test_further_names_are_given_by_the_operator(models: Path) -> None:
    endpoint = Endpoint(Predictor(models), "127.0.0.1", 0, names=["Camera.lan"])
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    try:
        assert ask(endpoint, "GET", "/", Host="camera.lan:8117")[0] == 200
        assert ask(endpoint, "GET", "/", Host="other.lan")[0] == 421
    finally:
        endpoint.stop()
        thread.join(30)
