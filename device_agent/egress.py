"""The one door through which anything leaves the device, and the ledger of what did.

The contract: the device's status, claims to its name, the tensors of the layout, and the scalars
that the method names. Anything else raises before it is sent. What is booked is on disk before an
update leaves: after a crash the ledger may say too much, never too little.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from fededge.errors import EgressError, StoreError
from fededge.storage.files import replace_file
from fededge.storage.sealed import read_sealed, sealed
from fededge.transport.outbox import Parcel
from fededge.transport.session import Session, Will
from fededge.wire import chunks, tensors
from fededge.wire.chunks import Payload
from fededge.wire.messages import Claim, Manifest, Report, Status, encode
from fededge.wire.topics import Topics

__all__ = ["Egress"]

log = logging.getLogger("agent")

CHUNK_EXPIRY = 24 * 3600


class Egress:
    """Sends what the contract names, and counts its bytes by field."""

    def __init__(self, session: Session, topics: Topics, device: str, ledger: Path) -> None:
        self.session = session
        self.topics = topics
        self.device = device
        self.path = ledger
        self.ledger: Counter[str] = Counter()

    def open(self, begun: bool = False) -> None:
        """Go on with the ledger where an earlier process left it; it must have, if `begun`."""
        if not self.path.exists():
            if begun:
                log.warning("%s: missing; it begins anew, without what has left before", self.path)
            return
        counts = read_sealed(self.path, dict[str, int])
        if counts is None:
            raise StoreError(f"{self.path}: unreadable or damaged; restore or remove it")
        self.ledger = Counter(counts)

    def save(self) -> None:
        replace_file(self.path, sealed(self.ledger) + b"\n")

    def claimed(self, claim: Claim) -> None:
        """Book the claim to our name, which goes out before there is a session to send it by."""
        self.ledger["claim"] += len(encode(claim))

    def status(self, status: Status) -> bytes:
        """Publish the status; returns its bytes."""
        words = self._words(status)
        self.session.publish(words.topic, words.payload, retain=True)
        return words.payload

    def last_words(self, status: Status) -> Will:
        """The status to leave behind, booked and saved: `Session.stop` sends it."""
        words = self._words(status)
        self.save()
        return words

    def report(self, report: Report, allowed: frozenset[str]) -> None:
        """Say that there is an update; `allowed` are the method's scalars."""
        words = self._report(report, allowed)
        self.save()
        self.session.publish(self.topics.device(self.device, "report"), words)

    def chunks(self, report: Report, payload: Payload, wanted: Iterable[int]) -> None:
        """Send these chunks of an update, but for those that are on their way already."""
        manifest = report.manifest
        if payload.facts != manifest:
            size = payload.facts.bytes
            raise EgressError(f"{size} bytes are not the update that the report describes")
        topics = {i: self.topics.update(self.device, report.version, i) for i in wanted}
        indices = sorted(
            index
            for index, topic in topics.items()
            if index < manifest.chunks and not self.session.sending(topic)
        )
        self._count(manifest, indices, tensors.spans(payload.source))
        self.save()
        for index in indices:
            make = functools.partial(_chunk, payload, index)
            self.session.send(Parcel(topics[index], make, expiry=CHUNK_EXPIRY))

    def drop(self) -> None:
        """No more chunks: the coordinator has decided."""
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
        in_scalars = 0
        for name, value in report.scalars.items():
            size = len(msgspec.json.encode({name: value})) - len("{}")
            self.ledger[f"scalar {name}"] += size
            in_scalars += size
        self.ledger["report"] += len(payload) - in_scalars
        return payload

    def _count(
        self, manifest: Manifest, indices: Iterable[int], fields: Mapping[str, tuple[int, int]]
    ) -> None:
        """Book the bytes of chunks under the tensors that they carry a piece of."""
        for index in indices:
            start = index * manifest.chunk_bytes
            end = min(start + manifest.chunk_bytes, manifest.bytes)
            framing = chunks.HEADER.size + end - start
            for name, (first, last) in fields.items():
                size = min(end, last) - max(start, first)
                if size > 0:
                    self.ledger[f"tensor {name}"] += size
                    framing -= size
            self.ledger["framing"] += framing


def _chunk(payload: Payload, index: int) -> bytes | None:
    """None if the file has changed or is gone: who still wants it asks again, and is told."""
    try:
        return payload.chunk(index)
    except StoreError as error:
        log.warning("chunk %d is not sent: %s", index, error)
        return None
