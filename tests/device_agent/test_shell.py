"""The agent's shell: what it makes of messages from anybody, with a key and without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fededge.config import AgentConfig, DataConfig
from fededge.credentials.signing_keys import make_keys, read_signing_key
from fededge.errors import DiskFullError, FedEdgeError
from fededge.transport.events import Denied
from fededge.transport.session import Connected, Incoming, Lost
from fededge.wire import chunks, reports, tensors
from fededge.wire.chunks import whole
from fededge.wire.messages import (
    Claim,
    Presence,
    Reply,
    State,
    Status,
    TaskMessage,
    decode,
    encode,
)
from fededge.wire.signing import sign
from fededge.wire.topics import Topics
from fededge_agent.agent import Agent, Surroundings
from fededge_agent.egress import Egress
from fededge_agent.machine import commands, events
from fededge_agent.machine.caution import STANDS
from fededge_agent.machine.download import Download
from fededge_agent.machine.turn import DeviceTurn
from fededge_agent.store import AgentStore, SavedTurn
from fededge_agent.turn_runner import TurnRunner
from fededge_agent.worker import Worker
from tests.device_agent.machine.test_agent import MODEL, STATE, V0
from tests.device_agent.store.test_store import save
from tests.faults.network import Broker, Link

TOPICS = Topics(STATE.federation)
ZEROS = "0" * 32


class Idle(Worker):
    """Notes what it is asked for, and does nothing."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked
        self.busy = False

    def prepare(self, state: State) -> None:
        self.asked.append(f"prepare {state.method}")

    def train(self, state: State) -> None:
        self.asked.append(f"train {state.version}")

    def release(self) -> None:
        """Nothing is exported here."""

    def warm_up(self) -> None:
        """Nothing is trained here."""


class Shell:
    """An agent on a broker in memory; the test sets its clock."""

    def __init__(self, folder: Path, key: bool) -> None:
        self.now = 1000.0
        self.asked: list[str] = []
        self.broker = Broker(lambda sender, packet: None)
        make_keys(folder / "a.key", folder / "a.pub")
        self.signing = read_signing_key(folder / "a.key") if key else None
        config = AgentConfig(
            federation=STATE.federation,
            device="box",
            state=str(folder / "state"),
            data=DataConfig(source="embedded"),
            trusted_key=str(folder / "a.pub") if key else "",
        )
        around = Surroundings(
            clock=lambda: self.now,
            session=self.connection,
            claim=lambda *_: None,
            worker=lambda *_: Idle(self.asked),
        )
        self.agent = Agent(config, around)
        self.store = self.agent.store
        self.shell = self.agent.open()
        self.machine = self.shell.parts.machine
        self.take(self.link.connect())
        self.hear(TOPICS.device("box", "status"), self.said().payload)  # the echo

    def connection(self, broker: Any, name: str, inbox: Any, will: Any, keep: int) -> Link:
        self.client_id = name
        self.link = Link(self.broker, "box", will)
        return self.link

    def take(self, event: Any) -> None:
        self.shell.take(event)

    def said(self) -> Any:
        return [p for p in self.link.outgoing if p.topic.endswith("/status")][-1]

    @property
    def status(self) -> Status:
        return decode(self.said().payload, Status)

    def hear(self, topic: str, payload: bytes) -> None:
        self.take(Incoming(topic, payload, False, lambda: None))

    def signed(self, message: Any) -> Any:
        return message if self.signing is None else sign(message, self.signing)

    def hears(self, kind: str, message: Any) -> None:
        topic = TOPICS.state if kind == "state" else TOPICS.device("box", kind)
        self.hear(topic, encode(self.signed(message)))

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            self.shell.tick()

    def prepared(self, state: State) -> None:
        self.take(events.Prepared(state))


Make = Callable[[bool], Shell]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(TurnRunner, "scalars", frozenset({"examples"}))
    made: list[Shell] = []

    def shell(key: bool) -> Shell:
        made.append(Shell(tmp_path, key))
        return made[-1]

    yield shell
    for each in made:
        each.agent.close()


with_and_without_a_key = pytest.mark.parametrize("key", [True, False], ids=["key", "no key"])
TASK = TaskMessage("box", STATE.run, V0)


def ready(shell: Shell) -> Shell:
    shell.hears("state", msgspec.structs.replace(STATE, issued=1))
    shell.machine.download = Download(held=V0)
    shell.prepared(STATE)
    return shell


@with_and_without_a_key
def test_a_task_is_taken(make: Make, key: bool) -> None:
    shell = ready(make(key))
    shell.hears("task", TASK)
    assert shell.asked[-1] == f"train {V0}"


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(lambda shell: TASK, id="not signed"),
        pytest.param(lambda shell: sign(TASK, Ed25519PrivateKey.generate()), id="another's key"),
        pytest.param(
            lambda shell: shell.signed(msgspec.structs.replace(TASK, device="other")),
            id="another device's",
        ),
        pytest.param(
            lambda shell: msgspec.structs.replace(
                shell.signed(msgspec.structs.replace(TASK, device="other")), device="box"
            ),
            id="another device's, in our name",
        ),
        pytest.param(
            lambda shell: shell.signed(msgspec.structs.replace(TASK, run="another")),
            id="another run's",
        ),
    ],
)
def test_with_a_key_no_other_task_is(make: Make, odd: Callable[[Shell], TaskMessage]) -> None:
    shell = ready(make(True))
    shell.hear(TOPICS.device("box", "task"), encode(odd(shell)))
    assert not [asked for asked in shell.asked if asked.startswith("train")]


def pending(shell: Shell) -> SavedTurn:
    """A turn that awaits its answer."""
    save(shell.store, now=1.0, later=2.0, version=V0)
    shell.machine.turn = DeviceTurn(events.Pending("run", V0))
    turn = shell.store.index.turn
    assert turn is not None
    return turn


@pytest.mark.parametrize("kind", ["accepted", "late", "refused"])
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(lambda shell, reply: reply, id="not signed"),
        pytest.param(
            lambda shell, reply: sign(reply, Ed25519PrivateKey.generate()), id="another's key"
        ),
        pytest.param(
            lambda shell, reply: shell.signed(msgspec.structs.replace(reply, device="other")),
            id="another device's",
        ),
        pytest.param(
            lambda shell, reply: shell.signed(msgspec.structs.replace(reply, run="another")),
            id="another run's",
        ),
        pytest.param(
            lambda shell, reply: shell.signed(
                msgspec.structs.replace(reply, version="000009-0123456789abcdef")
            ),
            id="another version's",
        ),
    ],
)
def test_with_a_key_no_other_reply_decides(
    make: Make, kind: Any, odd: Callable[[Shell, Reply], Reply]
) -> None:
    shell = ready(make(True))
    turn = pending(shell)
    reply = Reply(kind, V0, device="box", run="run")
    shell.hear(TOPICS.device("box", "reply"), encode(odd(shell, reply)))
    assert shell.store.index.turn == turn
    shell.hears("reply", reply)
    assert shell.store.index.turn is None


def test_a_claim_is_answered_with_its_nonce(make: Make) -> None:
    shell = make(False)
    shell.hears("claim", Claim("9e" * 16))
    assert shell.status.answers == "9e" * 16


def forged(**fields: Any) -> bytes:
    return encode(Status(**{"instance": ZEROS, "online": True, "device": "box", **fields}))


def test_a_rival_is_named_and_contradicted_and_ends_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    shell = ready(make(False))
    shell.pass_time(10.0)
    before = len(shell.link.outgoing)
    for _ in range(40):  # twenty seconds of it
        for _ in range(10):
            shell.hear(TOPICS.device("box", "status"), forged(activity="ready"))
        shell.pass_time(0.5)
    assert len(shell.link.outgoing) - before <= 5
    assert shell.status.problem == f"another agent runs as device 'box', or poses as it ({ZEROS})"
    assert caplog.text.count("another agent runs") <= 5
    shell.hear(TOPICS.device("box", "status"), shell.said().payload)
    shell.pass_time(61.0)
    assert shell.status.problem == "", "it has fallen silent"


@pytest.mark.parametrize("word", [b"", b"garbage", b'{"instance":"","online":true}'])
def test_garbage_in_our_name_is_replaced(make: Make, word: bytes) -> None:
    shell = make(False)
    shell.pass_time(10.0)
    before = len(shell.link.outgoing)
    shell.hear(TOPICS.device("box", "status"), word)
    shell.pass_time(0.5)
    assert len(shell.link.outgoing) == before + 1
    assert (shell.status.online, shell.status.problem) == (True, "")


def test_nothing_piles_up_while_there_is_no_connection(make: Make) -> None:
    shell = make(False)
    shell.pass_time(10.0)
    shell.hear(TOPICS.device("box", "status"), forged())
    shell.take(Lost("gone"))
    before = len(shell.link.outgoing)
    shell.pass_time(30.0)
    assert len(shell.link.outgoing) == before
    shell.take(Connected())
    assert len(shell.link.outgoing) == before + 1


def test_what_the_status_tells_is_not_the_end_of_the_client_id(make: Make) -> None:
    shell = make(False)
    secret = shell.store.index.instance
    assert shell.client_id.endswith(secret[:16])
    assert secret[:16] not in shell.said().payload.decode()
    assert secret[:16] not in shell.link.will.payload.decode()


def test_without_a_key_another_run_must_stand_before_a_device_gives_its_own_up(
    make: Make,
) -> None:
    shell = ready(make(False))
    turn = pending(shell)
    other = msgspec.structs.replace(STATE, run="other", method="fedprox(mu=0.1)")
    shell.hears("state", other)
    shell.pass_time(1.0)
    shell.hears("state", STATE)  # the coordinator has put its own back
    shell.pass_time(2 * STANDS)
    assert shell.store.index.turn == turn
    assert shell.asked == [f"prepare {STATE.method}"]
    shell.hears("state", other)
    shell.pass_time(STANDS)
    assert shell.asked[-1] == "prepare fedprox(mu=0.1)"
    assert shell.store.index.turn is None


def test_with_a_key_another_run_is_believed_at_once(make: Make) -> None:
    shell = ready(make(True))
    other = msgspec.structs.replace(STATE, run="other", method="fedprox(mu=0.1)", issued=2)
    shell.hears("state", other)
    assert shell.asked[-1] == "prepare fedprox(mu=0.1)"


def test_an_update_of_another_method_is_reported_without_its_numbers(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The federation went on with a method that has no such scalar; the answer is wanted still."""
    shell = ready(make(False))
    turn = pending(shell)
    turn.report.scalars["steps"] = 3.0
    shell.shell.do(commands.SendUpdate())
    sent = shell.link.outgoing[-1]
    assert sent.topic == TOPICS.device("box", "report")
    said, _ = reports.split(sent.payload)
    assert said.scalars == {k: v for k, v in turn.report.scalars.items() if k != "steps"}
    assert said.manifest == turn.report.manifest
    monkeypatch.setattr(TurnRunner, "scalars", frozenset({"examples", "steps"}))
    shell.shell.do(commands.SendUpdate())
    assert reports.split(shell.link.outgoing[-1].payload)[0] == turn.report


def test_a_report_carries_its_update_if_that_fits_a_chunk(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "spans", lambda source: {})  # the update here has no tensors
    shell = ready(make(False))
    turn = pending(shell)
    shell.shell.do(commands.SendUpdate(attached=True))
    report, chunk = reports.split(shell.link.outgoing[-1].payload)
    assert (report, report.manifest.chunks) == (turn.report, 1)
    assert len(whole(chunk, report.manifest)) == report.manifest.bytes
    shell.shell.do(commands.SendUpdate())
    assert reports.split(shell.link.outgoing[-1].payload) == (turn.report, memoryview(b""))


def test_a_report_whose_update_is_damaged_leads_to_another_turn(make: Make) -> None:
    shell = ready(make(False))
    turn = pending(shell)
    (shell.store.folder / turn.update.name).write_bytes(b"?")
    before = len(shell.link.outgoing)
    shell.shell.do(commands.SendUpdate(attached=True))
    assert [p for p in shell.link.outgoing[before:] if p.topic.endswith("/report")] == []
    assert shell.machine.turn.damaged


@pytest.mark.parametrize("key", [True, False], ids=["key", "no key"])
def test_nonsense_on_every_topic_costs_some_lines(
    make: Make, caplog: pytest.LogCaptureFixture, key: bool
) -> None:
    shell = ready(make(key))
    topics = [TOPICS.state, TOPICS.model(V0, 0), "elsewhere", f"{TOPICS.root}/nonsense"]
    topics += [TOPICS.device("box", kind) for kind in ("task", "reply", "claim", "status")]
    for _ in range(100):
        for topic in topics:
            for payload in (b"", b"\xff", b"{}", b"[" * 1000, b'{"device":"box"}'):
                shell.hear(topic, payload)
    dropped = [r for r in caplog.records if r.message.startswith("message on ")]
    assert 3 <= len(dropped) <= len(topics)
    assert shell.asked == [f"prepare {STATE.method}"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (DataConfig(source="none"), "set .data. source"),
        (
            DataConfig(source="embedded", split="dirichlet:1", devices=2, index=2),
            "the first device has index 0",
        ),
    ],
)
def test_data_that_cannot_be_is_told_before_anything_begins(
    tmp_path: Path, data: DataConfig, sentence: str
) -> None:
    """A person is there then; later, what is wrong with the data ends nothing."""
    config = AgentConfig(federation="f", device="box", state=str(tmp_path / "state"), data=data)
    with pytest.raises(FedEdgeError, match=sentence):
        Agent(config).run()
    assert not (tmp_path / "state").exists()


def test_data_that_is_not_there_yet_ends_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be mounted later."""
    monkeypatch.setattr(Agent, "connect", lambda agent: agent.stop())
    monkeypatch.setattr(Agent, "_run", lambda agent, shell: None)
    data = DataConfig(source="folder", root="/nowhere")
    Agent(AgentConfig(federation="f", device="box", state=str(tmp_path), data=data)).run()
    assert "/nowhere: there is no such file or folder; check `root`; the agent stays" in caplog.text


def test_a_device_is_unable_until_its_data_changes(tmp_path: Path, make: Make) -> None:
    shell = make(False)
    root = tmp_path / "images"
    shell.shell.parts.data.root = root
    shell.hears("state", STATE)
    shell.take(events.Unable(STATE, "the device's [data] root does not exist", events.Cause.DATA))
    said = shell.status
    assert (said.activity, said.problem) == ("unable", "the device's [data] root does not exist")
    prepare = f"prepare {STATE.method}"
    shell.pass_time(30)
    assert shell.asked == [prepare]
    (root / "cat").mkdir(parents=True)
    shell.pass_time(6)
    assert shell.asked == [prepare, prepare]
    shell.take(events.Unable(STATE, "the device's data folder is empty", events.Cause.DATA))
    shell.pass_time(30)
    assert shell.asked == [prepare, prepare]
    (root / "cat" / "1.png").write_bytes(b"1")
    shell.pass_time(6)
    assert shell.asked == [prepare] * 3
    shell.prepared(STATE)
    assert shell.status.activity != "unable"


def presence_of(federation: str, online: bool = True) -> bytes:
    return encode(Presence("0b" * 16, online, federation))


def test_a_typo_in_the_federations_name_is_told_with_the_names_that_there_are(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    shell = make(False)
    shell.pass_time(29)
    assert shell.status.problem == ""
    shell.pass_time(2)
    name = STATE.federation + "s"
    shell.hear(Topics(name).coordinator + "/status", presence_of(name))
    shell.hear("fededge/v1/+/coordinator/status", presence_of("x"))
    shell.pass_time(6)
    said = (
        f"no state of federation '{STATE.federation}' has come: the broker knows no federation "
        f"'{STATE.federation}'; did you mean '{name}'? (known: {name})"
    )
    assert shell.status.problem == said
    assert said in caplog.text
    shell.pass_time(600)
    assert caplog.text.count(said) == 1
    shell.hears("state", STATE)
    assert shell.status.problem == ""


def test_the_state_of_a_newer_version_is_told_until_one_can_be_read(make: Make) -> None:
    shell = make(False)
    newer = {**msgspec.to_builtins(STATE), "colour": "blue"}
    shell.hear(TOPICS.state, msgspec.json.encode(newer))
    shell.pass_time(1)
    said = shell.status.problem
    assert said.startswith("the coordinator runs a newer version of FedEdge")
    assert said.endswith("upgrade FedEdge on this device")
    shell.hears("state", STATE)
    assert shell.status.problem == ""


def test_a_device_that_hears_nothing_says_what_may_be_wrong(make: Make) -> None:
    shell = make(False)
    shell.pass_time(40)
    assert "its coordinator has not started yet, the name is wrong" in shell.status.problem


def test_the_state_of_a_coordinator_that_is_gone_is_told_as_an_old_one(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    shell = make(False)
    shell.hears("state", STATE)
    topic = f"{TOPICS.coordinator}/status"
    for online in (False, False, True, True):
        shell.hear(topic, presence_of(STATE.federation, online))
    lines = [r.message for r in caplog.records if r.message.startswith("the coordinator is")]
    assert lines == [
        "the coordinator is offline: its last state stands, and nothing is asked",
        "the coordinator is online again",
    ]


def test_a_forged_presence_of_the_coordinator_is_dropped(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    shell = make(True)
    shell.hear(f"{TOPICS.coordinator}/status", presence_of(STATE.federation, False))
    assert "the coordinator is offline" not in caplog.text
    assert "the message is not signed" in caplog.text


def test_what_the_broker_denies_is_in_the_status_until_the_next_connection(make: Make) -> None:
    shell = make(False)
    shell.link.broker.username = "other"  # type: ignore[attr-defined]
    shell.take(Denied("publish", TOPICS.device("box", "report"), "Not authorized"))
    assert shell.status.problem.startswith("the broker does not let user 'other' publish 'fededge")
    shell.take(shell.link.connect())
    assert shell.status.problem == ""


@pytest.mark.parametrize("step", ["expect", "keep", "check_model"])
def test_a_full_disk_drops_what_relies_on_the_failed_command(
    make: Make, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Nobody subscribes to chunks that cannot be kept, nor checks a model that is not there."""

    def full(*_: object, **__: object) -> None:
        raise DiskFullError("the disk is full")

    shell = make(False)
    shell.hears("state", STATE)
    monkeypatch.setattr(AgentStore, step, full)
    shell.prepared(STATE)
    for index in range(STATE.manifest.chunks):
        payload = chunks.pack(MODEL, STATE.manifest, index)
        shell.hear(TOPICS.model(V0, index), payload)
    assert (shell.status.activity, shell.status.problem) == ("failed", "the disk is full")
    followed = shell.broker.filters.get("box", {})
    assert not [topic for topic in followed if "/model/" in topic]
    monkeypatch.undo()


def test_a_report_that_finds_the_disk_full_is_sent_again_and_ends_no_training(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = ready(make(False))
    pending(shell)
    reported: list[bool] = []

    def full(*_: object, **__: object) -> None:
        reported.append(True)
        raise DiskFullError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Egress, "_save", full)
        shell.take(Connected())
        assert reported
        assert (shell.status.activity, shell.status.problem) == ("failed", "the disk is full")
    shell.pass_time(20.0)
    assert shell.link.outgoing[-1].topic == TOPICS.device("box", "report")
