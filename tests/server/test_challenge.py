"""Only a living rival with its key makes a running coordinator stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fededge.config import RoundsConfig
from fededge.errors import RefusedError
from fededge.service.log_lines import LogLines
from fededge.transport.session import Connected, Incoming, Lost
from fededge.wire.messages import Claim, Presence, decode, encode
from fededge.wire.signing import sign
from fededge_server.identity import Identity
from fededge_server.machine.rounds.rounds import Rounds
from fededge_server.parts import CoordinatorParts
from fededge_server.running import RunningCoordinator
from tests.server.machine.test_rounds import FACTS, V0

KEY = Ed25519PrivateKey.generate()
SMALLER, OURS, LARGER = "0" * 32, "8" * 32, "f" * 32


class Sink:
    """A session that keeps what is published."""

    address = "mqtt://nowhere"

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        self.sent.append((topic, payload))


class Silent:
    """A publisher that publishes nothing."""

    begun = 0

    def look(self) -> None:
        pass

    def begin(self) -> None:
        self.begun += 1

    def refresh(self) -> None:
        pass


class Empty:
    """A store in which nobody is revoked, and nothing waits to be synced."""

    def standings(self) -> dict[str, Any]:
        return {}

    def let_in(self) -> list[str]:
        return []

    def sync_marks(self) -> None:
        pass


class Named:
    """A coordinator that has announced its name, with the time in hand and no round to run."""

    def __init__(self, key: Ed25519PrivateKey | None) -> None:
        self.now = 1000.0
        self.sink, self.publisher = Sink(), Silent()
        self.identity = Identity("f", OURS, key)
        self.coordinator = RunningCoordinator(self.parts())
        self.coordinator.take(Connected())
        self.hear(self.sink.sent[-1][1])
        assert self.publisher.begun == 1, "its echo"

    def parts(self) -> CoordinatorParts:
        nothing: Any = None
        return CoordinatorParts(
            config=cast(Any, SimpleNamespace(rounds=RoundsConfig())),
            identity=self.identity,
            session=cast(Any, self.sink),
            store=cast(Any, Empty()),
            versions=cast(Any, SimpleNamespace(update_limit=0)),
            rounds=Rounds(FACTS, RoundsConfig(count=1), 1, V0),
            staging=None,
            merging=nothing,
            judge=cast(Any, SimpleNamespace(request=SimpleNamespace(open=False))),
            publisher=cast(Any, self.publisher),
            message=nothing,
            wall=lambda: 0.0,
            clock=lambda: self.now,
            lines=LogLines(logging.getLogger("test"), lambda: self.now, devices=1),
        )

    def hear(self, payload: bytes, kind: str = "status") -> None:
        topic = f"{self.identity.topics.coordinator}/{kind}"
        self.coordinator.take(Incoming(topic, payload, False, lambda: None))

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            self.coordinator.tick()

    def claims(self) -> list[Claim]:
        return [decode(data, Claim) for topic, data in self.sink.sent if topic.endswith("/claim")]

    def presences(self) -> list[Presence]:
        sent = self.sink.sent
        return [decode(data, Presence) for topic, data in sent if topic.endswith("/status")]


def rival(answers: str = "", **fields: Any) -> Presence:
    values = {"instance": SMALLER, "online": True, "federation": "f", "answers": answers}
    return Presence(**{**values, **fields})


def asked(key: Ed25519PrivateKey | None = KEY) -> tuple[Named, str]:
    """A coordinator that has heard of a rival, and what it asked it."""
    named = Named(key)
    named.hear(encode(rival()))
    named.pass_time(5.0)
    return named, named.claims()[-1].nonce if named.claims() else ""


def test_a_living_rival_with_the_same_key_stays_if_its_instance_is_smaller() -> None:
    named, nonce = asked()
    with pytest.raises(RefusedError, match=f"another coordinator of .* runs.*{SMALLER}"):
        named.hear(encode(sign(rival(nonce), KEY)))


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(lambda nonce: rival(nonce), id="not signed"),
        pytest.param(
            lambda nonce: sign(rival(nonce), Ed25519PrivateKey.generate()), id="another's key"
        ),
        pytest.param(lambda nonce: sign(rival(), KEY), id="answers nothing: repeated"),
        pytest.param(lambda nonce: sign(rival("9e" * 16), KEY), id="answers another: repeated"),
        pytest.param(
            lambda nonce: sign(rival(nonce, federation="other"), KEY), id="another federation's"
        ),
        pytest.param(lambda nonce: sign(rival(nonce, instance=LARGER), KEY), id="the larger one"),
        pytest.param(lambda nonce: sign(rival(nonce, online=False), KEY), id="it is gone"),
    ],
)
def test_nobody_else_makes_it_go(odd: Callable[[str], Presence]) -> None:
    named, nonce = asked()
    named.hear(encode(odd(nonce)))


def test_without_a_key_it_stays_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    named, nonce = asked(key=None)
    assert nonce == "", "what could it prove?"
    for _ in range(60):
        for instance in (SMALLER, LARGER):
            named.hear(encode(rival(instance=instance)))
        named.pass_time(0.5)
    lines, said = caplog.messages, "another coordinator of federation 'f' runs, or poses as it"
    assert all(said in line for line in lines)
    assert 1 <= len(lines) <= 7
    assert 5 <= len(named.presences()) <= 9, "its own word again, at a bounded rate"


@pytest.mark.parametrize("word", [b"", b"garbage", b'{"instance":"","online":true}'])
def test_garbage_in_its_name_is_replaced(word: bytes) -> None:
    named = Named(KEY)
    named.hear(word)
    named.pass_time(5.0)
    assert len(named.presences()) == 2
    assert named.claims() == []


def test_its_own_question_is_not_for_itself() -> None:
    named, nonce = asked()
    before = len(named.presences())
    named.hear(encode(Claim(nonce)), "claim")
    assert len(named.presences()) == before
    named.hear(encode(Claim("9e" * 16)), "claim")
    assert named.presences()[-1].answers == "9e" * 16


def test_nothing_piles_up_while_there_is_no_connection() -> None:
    named = Named(None)
    named.hear(encode(rival()))
    named.coordinator.take(Lost("gone"))
    named.pass_time(30.0)
    assert len(named.presences()) == 1
