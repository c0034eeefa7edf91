"""Requests and answers of an enrolment over the broker, where boxes have a user `enrol`.

Whoever has that user's certificate may write any request: a request counts only once an operator
has compared its fingerprint, and a list of them is bounded.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from fededge.config import BrokerConfig
from fededge.enrolment.answer import read_answer
from fededge.enrolment.request import LARGEST_REQUEST, EnrolmentRequest, read_request
from fededge.errors import ConfigError, RefusedError, TransportError
from fededge.transport.probing import GRANTED, Probing
from fededge.wire.topics import Topics

__all__ = ["ask", "pending", "pending_request", "send_answer"]

CONNECTED = 20.0
"""Seconds of one connection of a box that waits; it then asks anew, as after a lost connection."""

QUIET = 1.0
PATIENCE = 10.0
MOST_PENDING = 100
MOST_HEARD = 1000
"""Messages after which a list of pending boxes is cut: there are more than an operator reads."""


# On the box


def ask(
    broker: BrokerConfig, federation: str, request: EnrolmentRequest, pem: bytes, seconds: float
) -> bytes:
    """Publish the request and wait for an answer; RefusedError if none comes in time.

    Answers for another key do not count: the broker may keep that of an earlier box of this name.
    """
    topics, deadline = Topics(federation), time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        with Probing(broker, min(left, CONNECTED)) as line:
            if not line.connected:
                raise RefusedError("the broker does not take this box in; see the files of `enrol`")
            line.subscribe([topics.enrolment(request.device, "answer")])
            code = line.publish(topics.enrolment(request.device, "request"), pem, retain=True)
            if code >= GRANTED:
                raise RefusedError(f"the broker takes no requests for federation '{federation}'")
            line.listen(CONNECTED, lambda: any(_fits(one.payload, request) for one in line.heard))
            for heard in line.heard:
                if _fits(heard.payload, request):
                    line.publish(topics.enrolment(request.device, "request"), b"", retain=True)
                    return heard.payload
    raise RefusedError(
        f"{request.device} is pending: nobody has accepted it for {seconds:.0f} s; the request "
        "stays at the broker, run the same command again to wait on"
    )


def _fits(payload: bytes, request: EnrolmentRequest) -> bool:
    """True if this is a whole answer for the box's own key."""
    try:
        read_answer(payload, request.device, request.key)
    except ConfigError:
        return False
    return True


# At the operator


def pending(broker: BrokerConfig, federation: str) -> dict[str, EnrolmentRequest]:
    """The requests that wait at the broker, by device; those that are none are left out."""
    found = _heard(broker, Topics(federation), "+")
    return dict(sorted(found.items())[:MOST_PENDING])


def pending_request(broker: BrokerConfig, federation: str, device: str) -> EnrolmentRequest:
    found = _heard(broker, Topics(federation), device).get(device)
    if found is None:
        raise ConfigError(
            f"no request of '{device}' waits at the broker; see `fededge devices pending`, or give "
            "--request FILE"
        )
    return found


def _heard(broker: BrokerConfig, topics: Topics, device: str) -> dict[str, EnrolmentRequest]:
    found: dict[str, EnrolmentRequest] = {}
    with _line(broker) as line:
        line.subscribe([topics.enrolment(device, "request")])
        line.listen(QUIET, lambda: len(line.heard) >= MOST_HEARD)
    for heard in line.heard[:MOST_HEARD]:
        with contextlib.suppress(ConfigError):  # anybody may have written it
            request = read_request(heard.payload[: LARGEST_REQUEST + 1])
            if heard.topic == topics.enrolment(request.device, "request"):
                found[request.device] = request
    return found


def send_answer(broker: BrokerConfig, federation: str, device: str, answer: bytes) -> None:
    """Publish the answer, retained: the box may be offline."""
    topics = Topics(federation)
    with _line(broker) as line:
        if line.publish(topics.enrolment(device, "answer"), answer, retain=True) >= GRANTED:
            raise RefusedError("the broker refuses the answer; see `fededge init broker`")
        line.publish(topics.enrolment(device, "request"), b"", retain=True)


@contextlib.contextmanager
def _line(broker: BrokerConfig) -> Iterator[Probing]:
    try:
        with Probing(broker, PATIENCE) as line:
            if not line.connected:
                raise TransportError(f"mqtt://{broker.host}:{broker.port}: no broker takes us in")
            yield line
    except OSError as error:
        raise TransportError(f"{broker.host}:{broker.port}: no broker answers ({error})") from None
