"""The one door: what leaves is in the contract, and the ledger is exactly what left."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from torch import nn

from fededge.cli.operation.audit import read_ledger
from fededge.errors import EgressError, StoreError
from fededge.flat import Layout
from fededge.storage.source import FileSource
from fededge.transport.outbox import Outbox, Parcel
from fededge.transport.session import Session
from fededge.wire import reports, tensors
from fededge.wire.chunks import Assembly, Payload, whole
from fededge.wire.messages import Claim, Report, Status, decode, encode
from fededge.wire.topics import Topics
from fededge_agent.egress import Egress

TOPICS = Topics("fleet")
LAYOUT = Layout.of(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 2)))
PAYLOAD = tensors.encode(
    LAYOUT, {"model": np.random.default_rng(0).standard_normal(LAYOUT.size, np.float32)}
)
UPDATE = Payload.of(PAYLOAD, 1024)
VERSION = "000001-0123456789abcdef"
ALLOWED = frozenset({"examples", "loss", "steps"})
REPORT = Report(
    device="box",
    run="run",
    version=VERSION,
    layout=LAYOUT.hash,
    manifest=UPDATE.facts,
    scalars={"examples": 100.0, "loss": 1e-5, "steps": 1e16},
)


class FakeSession:
    """Takes what is handed to the broker."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.waiting: set[str] = set()
        self.numbers = itertools.count()

    def publish(
        self, topic: str, payload: bytes, retain: bool = False, expiry: int | None = None
    ) -> None:
        self.sent.append((topic, payload))

    def send(self, parcel: Parcel) -> None:
        Outbox(self._hand).put(parcel)

    def _hand(self, parcel: Parcel, payload: bytes) -> int:
        self.publish(parcel.topic, payload)
        return next(self.numbers)

    def sending(self, topic: str) -> bool:
        return topic in self.waiting

    def kinds(self) -> list[str]:
        return [TOPICS.parse(topic).kind for topic, _ in self.sent]


class FakeCounts:
    """Durable counts, and how often they had to be made so."""

    def __init__(self, ledger: Mapping[str, int] | None = None) -> None:
        self.ledger: Mapping[str, int] = ledger or {}
        self.commits = 0

    def count(self, ledger: Mapping[str, int]) -> None:
        self.ledger = dict(ledger)
        self.commits += 1


class Door:
    """An egress on a fake session."""

    def __init__(self, folder: Path, durable: FakeCounts | None = None) -> None:
        self.session = FakeSession()
        self.durable = durable or FakeCounts()
        ledger = folder / "ledger.json"
        self.egress = Egress(cast(Session, self.session), TOPICS, "box", ledger, self.durable)
        self.egress.open()

    def deliver(self, report: Report = REPORT, payload: Payload = UPDATE) -> None:
        """A report, and all the chunks that it names."""
        self.egress.report(report, ALLOWED)
        self.egress.chunks(report, payload, range(report.manifest.chunks))

    @property
    def sent(self) -> int:
        return sum(len(payload) for _, payload in self.session.sent)

    @property
    def booked(self) -> int:
        return sum(self.egress.ledger.values())


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def test_the_ledger_is_exactly_what_was_handed_to_the_broker(door: Door) -> None:
    door.egress.status(Status("i", True, device="box", activity="ready"))
    door.deliver()
    door.egress.chunks(REPORT, UPDATE, (0, 2))
    door.egress.report(REPORT, ALLOWED)
    assert door.booked == door.sent > len(PAYLOAD)
    assert read_ledger(door.egress.path) == dict(door.egress.ledger)


def test_a_whole_update_is_the_report_and_every_byte_of_the_payload(door: Door) -> None:
    door.deliver()
    (topic, payload), *rest = door.session.sent
    assert (TOPICS.parse(topic).kind, decode(payload, Report)) == ("report", REPORT)
    out = bytearray(len(PAYLOAD))
    assembly = Assembly(REPORT.manifest, 0.0)
    for index, (topic, message) in enumerate(rest):
        assert topic == TOPICS.update("box", VERSION, index)
        piece = assembly.take(message, 0.0)
        assert piece is not None
        out[piece[0] : piece[0] + len(piece[1])] = piece[1]
    assert bytes(out) == PAYLOAD


WHOLE = Payload.of(PAYLOAD, 1 << 16)
ALL_OF_IT = msgspec.structs.replace(REPORT, manifest=WHOLE.facts)


def test_a_small_update_travels_with_its_report_and_is_booked_alike(door: Door) -> None:
    door.egress.report(ALL_OF_IT, ALLOWED, WHOLE)
    ((topic, message),) = door.session.sent
    assert TOPICS.parse(topic).kind == "report"
    report, chunk = reports.split(message)
    assert report == ALL_OF_IT
    assert whole(chunk, report.manifest) == PAYLOAD
    assert door.booked == door.sent == len(message)
    assert read_ledger(door.egress.path) == dict(door.egress.ledger)
    booked = {k: v for k, v in door.egress.ledger.items() if k.startswith("tensor ")}
    assert booked == {f"tensor {e.name}": 4 * e.size for e in LAYOUT.entries}


def test_an_update_that_is_not_its_report_s_does_not_travel_with_it(door: Door) -> None:
    with pytest.raises(EgressError, match="does not match the manifest"):
        door.egress.report(ALL_OF_IT, ALLOWED, UPDATE)
    assert door.sent == 0


def test_a_small_update_whose_file_has_changed_stays_and_its_report_goes(
    door: Door, tmp_path: Path
) -> None:
    path = tmp_path / "1.update"
    path.write_bytes(PAYLOAD)
    payload = Payload.of(FileSource(path), 1 << 16)
    path.write_bytes(PAYLOAD[:-1] + b"?")
    door.egress.report(ALL_OF_IT, ALLOWED, payload)
    ((_, message),) = door.session.sent
    assert decode(message, Report) == ALL_OF_IT
    assert door.booked == door.sent


def test_each_tensor_is_booked_with_its_own_bytes(door: Door) -> None:
    door.deliver()
    booked = {k: v for k, v in door.egress.ledger.items() if k.startswith("tensor ")}
    assert booked == {f"tensor {e.name}": 4 * e.size for e in LAYOUT.entries}
    header = len(PAYLOAD) - 4 * LAYOUT.size
    assert door.egress.ledger["framing"] == header + 28 * REPORT.manifest.chunks


def test_each_scalar_is_booked_with_the_bytes_that_it_takes_in_the_message(door: Door) -> None:
    """Checked on the message itself: without a scalar it is shorter by its bytes and a comma."""
    rng = random.Random(0)
    for _ in range(60):
        value = rng.choice([-1, 1]) * rng.random() * 10.0 ** rng.randint(-30, 30)
        report = msgspec.structs.replace(REPORT, scalars={"loss": value, "steps": 1.0})
        without = msgspec.structs.replace(REPORT, scalars={"steps": 1.0})
        before = door.egress.ledger["scalar loss"]
        door.egress.report(report, ALLOWED)
        taken = door.egress.ledger["scalar loss"] - before
        assert taken == len(encode(report)) - len(encode(without)) - len(",")
    assert door.booked == door.sent


@pytest.mark.parametrize(
    "scalars",
    [
        {"examples": 1.0, "labels": 3.0},
        {"examples": 1.0, "loss": math.nan},
        {"examples": 1.0, "loss": math.inf},
        {"examples": 1},
        {"examples": "many"},
    ],
)
def test_a_scalar_outside_the_contract_stops_everything(door: Door, scalars: Any) -> None:
    report = msgspec.structs.replace(REPORT, scalars=scalars)
    with pytest.raises(EgressError, match="scalar"):
        door.deliver(report)
    assert door.session.sent == []
    assert door.booked == 0


def test_bytes_that_the_report_does_not_describe_do_not_leave(door: Door) -> None:
    with pytest.raises(EgressError):
        door.egress.chunks(REPORT, Payload.of(PAYLOAD + b"and a label", 1024), (0,))
    assert door.session.sent == []


def test_chunks_that_are_not_there_or_asked_for_twice_are_sent_once_or_not(door: Door) -> None:
    last = REPORT.manifest.chunks - 1
    door.egress.chunks(REPORT, UPDATE, (last, 0, 0, last + 1, 10**6, 0))
    assert [TOPICS.parse(topic).chunk for topic, _ in door.session.sent] == [0, last]


def test_chunks_that_are_on_their_way_are_neither_sent_nor_booked_again(door: Door) -> None:
    door.session.waiting = {TOPICS.update("box", VERSION, 1)}
    door.egress.chunks(REPORT, UPDATE, (0, 1, 2))
    assert [TOPICS.parse(topic).chunk for topic, _ in door.session.sent] == [0, 2]
    assert door.booked == door.sent


def test_claims_and_last_words_are_booked(door: Door) -> None:
    claim, status = Claim("ab" * 16), Status("cd" * 16, False, device="box")
    door.egress.claimed(claim)
    words = door.egress.last_words(status)
    assert words.topic == TOPICS.device("box", "status")
    assert decode(words.payload, Status) == status
    assert door.booked == len(encode(claim)) + len(words.payload)
    assert read_ledger(door.egress.path).keys() == {"claim", "status"}


def test_an_update_is_on_the_ledger_before_it_leaves(door: Door) -> None:
    """A crash in the middle of sending: the ledger on disk says too much, never too little."""

    def crash(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    door.session.publish = crash  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        door.egress.chunks(REPORT, UPDATE, range(REPORT.manifest.chunks))
    assert sum(read_ledger(door.egress.path).values()) > len(PAYLOAD)


@pytest.mark.parametrize("attached", [False, True])
def test_what_a_turn_sends_was_made_durable_with_it(door: Door, attached: bool) -> None:
    """Only what is sent a second time, and was not foreseen, costs a commit of its own."""
    update = Payload.of(PAYLOAD, len(PAYLOAD)) if attached else UPDATE
    report = msgspec.structs.replace(REPORT, manifest=update.facts)
    door.durable.ledger = door.egress.foreseen(report, PAYLOAD)
    door.egress.status(Status("i", True, device="box", activity="ready"))
    if attached:
        door.egress.report(report, ALLOWED, update)
    else:
        door.deliver(report, update)
    assert door.durable.commits == 0
    foreseen = sum(door.durable.ledger.values())
    assert foreseen - 1 <= door.booked - door.egress.ledger["status"] <= foreseen
    door.egress.chunks(report, update, (0,))
    assert door.durable.commits == 1
    assert door.durable.ledger == door.egress.ledger


def test_a_ledger_that_a_power_cut_has_torn_goes_on_from_the_durable_counts(
    door: Door, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    door.deliver()
    for torn in (b"", b"{"):
        door.egress.path.write_bytes(torn)
        again = Door(tmp_path, FakeCounts(door.durable.ledger))
        assert again.egress.ledger == door.egress.ledger
        assert caplog.messages.pop().endswith("missing or damaged; counting goes on from the index")
        caplog.clear()


def test_after_a_crash_the_larger_count_is_believed(door: Door, tmp_path: Path) -> None:
    door.deliver()
    more = {"report": door.egress.ledger["report"] + 5, "framing": 1}
    again = Door(tmp_path, FakeCounts(more))
    assert again.egress.ledger["report"] == more["report"]
    assert again.egress.ledger["framing"] == door.egress.ledger["framing"]


def test_after_a_stop_the_ledger_is_exact(door: Door) -> None:
    door.durable.ledger = door.egress.foreseen(REPORT, PAYLOAD)
    door.egress.last_words(Status("i", False, device="box", activity="ready"))
    assert door.durable.ledger == {}
    assert read_ledger(door.egress.path) == dict(door.egress.ledger)


def test_a_chunk_whose_file_is_gone_or_damaged_is_not_sent(door: Door, tmp_path: Path) -> None:
    """The coordinator asks again, and then the whole file is checked."""
    path = tmp_path / "update"
    path.write_bytes(PAYLOAD)
    update = Payload.of(FileSource(path), 1024)
    path.write_bytes(PAYLOAD[:1024] + b"?" + PAYLOAD[1025:])
    door.egress.chunks(REPORT, update, (0, 1))
    assert [topic for topic, _ in door.session.sent] == [TOPICS.update("box", VERSION, 0)]
    assert tensors.spans(FileSource(path)) == tensors.spans(PAYLOAD), (
        "read from the file as from bytes"
    )
    path.rename(tmp_path / "aside")
    (tmp_path / "aside").write_bytes(PAYLOAD)
    with pytest.raises(StoreError, match="update: cannot be read"):
        update.chunk(0)


def test_the_ledger_goes_on_after_a_restart(door: Door, tmp_path: Path) -> None:
    door.deliver()
    again = Door(tmp_path)
    assert again.egress.ledger == door.egress.ledger
    again.deliver()
    assert again.booked == 2 * door.booked


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": "b"}', b'{"a": null}', b"\xff"])
def test_an_unreadable_ledger_is_said_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ledger.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"ledger\.json: unreadable .* restore or remove it"):
        Door(tmp_path)


def test_a_ledger_that_was_changed_is_found_by_its_checksum(door: Door, tmp_path: Path) -> None:
    door.deliver()
    whole = door.egress.path.read_bytes()
    changed = re.sub(rb'("framing":)\d', rb"\g<1>9", whole)
    assert changed != whole
    door.egress.path.write_bytes(changed)
    for use in (lambda: Door(tmp_path), lambda: read_ledger(door.egress.path)):
        with pytest.raises(StoreError, match=r"ledger\.json: unreadable or damaged"):
            use()


def test_a_ledger_that_is_gone_is_told(
    door: Door, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    door.egress.open()
    assert caplog.messages == []
    door.egress.open(begun=True)
    assert caplog.messages == [
        f"{tmp_path / 'ledger.json'}: missing; counting starts again from zero"
    ]
