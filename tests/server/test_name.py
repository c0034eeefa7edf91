"""Who makes a running coordinator go: a living rival with its key, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fededge.config import CoordinatorConfig
from fededge.errors import RefusedError
from fededge.transport.session import Lost, Message, Session
from fededge.wire.messages import Claim, Presence, Reply, TaskMessage, decode, encode
from fededge.wire.signing import sign, signed_by
from fededge_server.machine import events
from fededge_server.publisher import Publisher
from fededge_server.shell import Coordinator
from fededge_server.sweeper import Sweeper
from tests.server.machine.test_rounds import FACTS, V0

KEY = Ed25519PrivateKey.generate()
SMALLER, LARGER = "0" * 32, "f" * 32


class Sink:
    """A session that keeps what is published."""

    address = "mqtt://nowhere"

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        self.sent.append((topic, payload))


class Unseen:
    """A board that nobody looks at."""

    overwritten = False

    def looked(self) -> None: ...

    def look(self) -> None: ...


class Shell(Coordinator):
    """A coordinator that has announced itself, with the time in hand."""

    def __init__(self, folder: Path, key: Ed25519PrivateKey | None) -> None:
        self.now = 1000.0
        super().__init__(CoordinatorConfig(federation="f", state=str(folder)), lambda: self.now)
        self.key = key
        self.sink = Sink()
        self.session = cast(Session, self.sink)
        self.board = cast(Publisher, Unseen())
        self.sweeper = Sweeper(self.session, self.topics)
        self._publish_presence()
        self.hear("status", self.sink.sent[-1][1])

    def hear(self, kind: str, payload: bytes) -> None:
        self._take(Message(f"{self.topics.coordinator}/{kind}", payload, False, lambda: None))

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            self._keep_name()

    def claims(self) -> list[Claim]:
        return [decode(data, Claim) for topic, data in self.sink.sent if topic.endswith("/claim")]

    def presences(self) -> list[Presence]:
        sent = self.sink.sent
        return [decode(data, Presence) for topic, data in sent if topic.endswith("/status")]


def rival(answers: str = "", **fields: Any) -> Presence:
    values = {"instance": SMALLER, "online": True, "federation": "f", "answers": answers}
    return Presence(**{**values, **fields})


def asked(folder: Path, key: Ed25519PrivateKey | None = KEY) -> tuple[Shell, str]:
    """A coordinator that has heard of a rival, and what it asked it."""
    shell = Shell(folder, key)
    shell.hear("status", encode(rival()))
    shell.pass_time(5.0)
    return shell, shell.claims()[-1].nonce if shell.claims() else ""


def test_a_living_rival_with_the_same_key_stays_if_its_instance_is_smaller(tmp_path: Path) -> None:
    shell, nonce = asked(tmp_path)
    with pytest.raises(RefusedError, match=f"another coordinator of .* runs.*{SMALLER}"):
        shell.hear("status", encode(sign(rival(nonce), KEY)))


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
def test_nobody_else_makes_it_go(tmp_path: Path, odd: Callable[[str], Presence]) -> None:
    shell, nonce = asked(tmp_path)
    shell.hear("status", encode(odd(nonce)))


def test_without_a_key_it_stays_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shell, nonce = asked(tmp_path, key=None)
    assert nonce == "", "what could it prove?"
    for _ in range(60):
        for instance in (SMALLER, LARGER):
            shell.hear("status", encode(rival(instance=instance)))
        shell.pass_time(0.5)
    assert 1 <= caplog.text.count("another coordinator of federation 'f' runs") <= 5
    assert 5 <= len(shell.presences()) <= 9, "its own word again, at a bounded rate"


@pytest.mark.parametrize("word", [b"", b"garbage", b'{"instance":"","online":true}'])
def test_garbage_in_its_name_is_replaced(tmp_path: Path, word: bytes) -> None:
    shell = Shell(tmp_path, KEY)
    shell.hear("status", word)
    shell.pass_time(5.0)
    assert len(shell.presences()) == 2
    assert shell.claims() == []


@pytest.mark.parametrize("word", [b"", b"garbage"])
def test_garbage_in_place_of_its_state_is_replaced(tmp_path: Path, word: bytes) -> None:
    shell = Shell(tmp_path, None)
    shell._take(Message(shell.topics.state, word, False, lambda: None))
    assert shell.board.overwritten


def test_its_own_question_is_not_for_itself(tmp_path: Path) -> None:
    shell, nonce = asked(tmp_path)
    before = len(shell.presences())
    shell.hear("claim", encode(Claim(nonce)))
    assert len(shell.presences()) == before
    shell.hear("claim", encode(Claim("9e" * 16)))
    assert shell.presences()[-1].answers == "9e" * 16


def test_nothing_piles_up_while_there_is_no_connection(tmp_path: Path) -> None:
    shell = Shell(tmp_path, None)
    shell.hear("status", encode(rival()))
    shell._take(Lost("gone"))
    shell.pass_time(30.0)
    assert len(shell.presences()) == 1


@pytest.mark.parametrize("key", [KEY, None], ids=["key", "no key"])
def test_all_that_it_says_to_a_device_names_it_and_is_signed(
    tmp_path: Path, key: Ed25519PrivateKey | None
) -> None:
    shell = Shell(tmp_path, key)

    class Told:
        facts, full = FACTS, False

    shell.rounds = cast(Any, Told())
    shell._do(events.Invite("a", 0, V0))
    shell._do(events.SendReply("a", Reply("late", V0, "why")))
    (task_topic, task_data), (reply_topic, reply_data) = shell.sink.sent[-2:]
    task, reply = decode(task_data, TaskMessage), decode(reply_data, Reply)
    assert (task.device, task.run, task.version) == ("a", "run", V0)
    assert (reply.device, reply.run, reply.version, reply.reason) == ("a", "run", V0, "why")
    assert (task_topic, reply_topic) == tuple(
        shell.topics.device("a", k) for k in ("task", "reply")
    )
    for message in (task, reply, shell.presences()[0]):
        trusted = (KEY.public_key(),)
        assert bool(message.signature) == bool(key)
        assert key is None or signed_by(message, trusted)
