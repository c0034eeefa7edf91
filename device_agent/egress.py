"""The egress contract: all outgoing data passes an allow-list, and a ledger counts its bytes.

Allowed are the device's status, claims to its name, the tensors of the layout, and the scalars that
the method lists. Anything else raises before it is sent. The ledger is on disk before an update
leaves: after a crash it may count too much, never too little. The bytes that a turn is going to
send are made durable with the turn itself; only bytes beyond them need a sync of their own.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from fededge.errors import EgressError, StoreError, WireError
from fededge.storage.files import replace_file, replacing
from fededge.storage.sealed import read_sealed, sealed
from fededge.transport.outbox import Parcel
from fededge.transport.session import Session, Will
from fededge.wire import chunks, reports, tensors
from fededge.wire.chunks import Payload
from fededge.wire.messages import Claim, Manifest, Report, Status, encode
from fededge.wire.source import Source
from fededge.wire.topics import Topics

__all__ = ["Egress", "reduced"]

log = logging.getLogger("agent")

CHUNK_EXPIRY = 24 * 3600
ATTACHED_EXPIRY = 60
"""Seconds that the broker keeps a report with its update: the next report asks for a decision."""


UPDATE = frozenset({"report", "scalar", "tensor", "framing"})
"""Kinds of fields that leave with an update; the others say what the device is doing."""


class DurableCounts(Protocol):
    """Keeps at least the bytes that have left, by field, where no power cut can reach them.

    They are empty while the ledger's own file is durable.
    """

    @property
    def ledger(self) -> Mapping[str, int]: ...
    def count(self, ledger: Mapping[str, int]) -> None: ...


class Egress:
    """Sends what the contract allows, and counts its bytes by field."""

    def __init__(
        self,
        session: Session,
        topics: Topics,
        device: str,
        ledger: Path,
        durable: DurableCounts,
    ) -> None:
        self.session = session
        self.topics = topics
        self.device = device
        self.path = ledger
        self.durable = durable
        self.ledger: Counter[str] = Counter()

    def open(self, begun: bool = False) -> None:
        """Read the ledger of an earlier process; warn if `begun` and there is none."""
        bound = self.durable.ledger
        counts = read_sealed(self.path, dict[str, int])
        if counts is None and bound:
            log.warning("%s: missing or damaged; counting goes on from the index", self.path)
        elif counts is None:
            if self.path.exists():
                raise StoreError(f"{self.path}: unreadable or damaged; restore or remove it")
            if begun:
                log.warning("%s: missing; counting starts again from zero", self.path)
        self.ledger = Counter(counts or {}) | Counter(bound)  # the larger of each

    def _save(self) -> None:
        """Make the counts durable, unless they are; the file is for `fededge audit`."""
        bound = self.durable.ledger
        over = (count > bound.get(name, 0) for name, count in self.ledger.items() if _leaves(name))
        if any(over):
            self.durable.count(self.ledger)
        with replacing(self.path, synced=False) as file:
            file.write(sealed(self.ledger) + b"\n")

    def foreseen(self, report: Report, update: Source) -> Counter[str]:
        """The ledger after an update, and its report, have left once."""
        counts = Counter(self.ledger)
        _count_report(counts, report, encode(report))
        _count_chunks(counts, report.manifest, range(report.manifest.chunks), update)
        counts["framing"] += len(reports.join(report, b"")) - len(encode(report))
        return counts

    def claimed(self, claim: Claim) -> None:
        """Count the claim to our name, which is sent before the session starts."""
        self.ledger["claim"] += len(encode(claim))

    def status(self, status: Status) -> bytes:
        """Publish the status, and return its bytes."""
        words = self._words(status)
        self.session.publish(words.topic, words.payload, retain=True)
        return words.payload

    def last_words(self, status: Status) -> Will:
        """Count the last status; `Session.stop` sends it."""
        words = self._words(status)
        replace_file(self.path, sealed(self.ledger) + b"\n")
        self.durable.count({})
        return words

    def report(
        self, report: Report, allowed: frozenset[str], payload: Payload | None = None
    ) -> None:
        """Report an update; `allowed` are the method's scalars.

        Args:
            payload: the update itself, to travel with its report in one message.
        """
        words = self._report(report, allowed)
        expiry = None
        if payload is not None and (chunk := self._only_chunk(report, payload)) is not None:
            words, expiry = reports.join(report, chunk), ATTACHED_EXPIRY
            self.ledger["framing"] += len(words) - len(chunk) - len(encode(report))
        self._save()
        self.session.publish(self.topics.device(self.device, "report"), words, expiry=expiry)

    def _only_chunk(self, report: Report, payload: Payload) -> bytes | None:
        """The chunk of an update that fits one; its bytes are counted."""
        self._check_payload(report, payload)
        chunk = _chunk(payload, 0)
        if chunk is not None:
            _count_chunks(self.ledger, report.manifest, (0,), payload.source)
        return chunk

    def _check_payload(self, report: Report, payload: Payload) -> None:
        if payload.facts != report.manifest:
            size = payload.facts.bytes
            raise EgressError(
                f"the update ({size} bytes) does not match the manifest of its report"
            )

    def chunks(self, report: Report, payload: Payload, wanted: Iterable[int]) -> None:
        """Send these chunks of an update, except those that are already being sent."""
        manifest = report.manifest
        self._check_payload(report, payload)
        topics = {i: self.topics.update(self.device, report.version, i) for i in wanted}
        indices = sorted(
            index
            for index, topic in topics.items()
            if index < manifest.chunks and not self.session.sending(topic)
        )
        _count_chunks(self.ledger, manifest, indices, payload.source)
        self._save()
        for index in indices:
            make = functools.partial(_chunk, payload, index)
            self.session.send(Parcel(topics[index], make, expiry=CHUNK_EXPIRY))

    def drop(self) -> None:
        """Drop chunks that still wait: the coordinator has decided."""
        self.session.drop(self.topics.device(self.device, "update"))

    def _words(self, status: Status) -> Will:
        payload = encode(status)
        self.ledger["status"] += len(payload)
        return Will(self.topics.device(self.device, "status"), payload)

    def _report(self, report: Report, allowed: frozenset[str]) -> bytes:
        for name, value in report.scalars.items():
            if name not in allowed or not isinstance(value, float) or not math.isfinite(value):
                raise EgressError(f"scalar '{name}' is not in the method's contract, or not finite")
        payload = encode(report)
        _count_report(self.ledger, report, payload)
        return payload


def reduced(report: Report, allowed: frozenset[str]) -> Report:
    """The report without the scalars of an earlier method: only its answer is wanted still."""
    if report.scalars.keys() <= allowed:
        return report
    known = {name: value for name, value in report.scalars.items() if name in allowed}
    return msgspec.structs.replace(report, scalars=known)


def _leaves(field: str) -> bool:
    """True for a field of an update or of its report."""
    return field.split(maxsplit=1)[0] in UPDATE


def _count_report(ledger: Counter[str], report: Report, payload: bytes) -> None:
    in_scalars = 0
    for name, value in report.scalars.items():
        size = len(msgspec.json.encode({name: value})) - len("{}")
        ledger[f"scalar {name}"] += size
        in_scalars += size
    ledger["report"] += len(payload) - in_scalars


def _count_chunks(
    ledger: Counter[str], manifest: Manifest, indices: Iterable[int], update: Source
) -> None:
    """Count the bytes of chunks by the tensors that they carry."""
    try:
        fields = tensors.spans(update)
    except WireError:  # the file is damaged: its chunks are not sent
        fields = {}
    for index in indices:
        start = index * manifest.chunk_bytes
        end = min(start + manifest.chunk_bytes, manifest.bytes)
        framing = chunks.HEADER.size + end - start
        for name, (first, last) in fields.items():
            size = min(end, last) - max(start, first)
            if size > 0:
                ledger[f"tensor {name}"] += size
                framing -= size
        ledger["framing"] += framing


def _chunk(payload: Payload, index: int) -> bytes | None:
    """A chunk of the update; None if the file has changed: the coordinator asks again."""
    try:
        return payload.chunk(index)
    except StoreError as error:
        log.warning("chunk %d is not sent: %s", index, error)
        return None
