"""The one door through which anything leaves the device, and the ledger of what did.

The contract: the device's status, claims to its name, the tensors of the layout, and the scalars
that the method names. Anything else raises before it is sent.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

from fededge.errors import EgressError, StoreError
from fededge.files import replace_file
from fededge.transport.session import Session
from fededge.wire import chunks, tensors
from fededge.wire.messages import Report, Status, encode
from fededge.wire.topics import Topics

__all__ = ["Egress"]

CHUNK_EXPIRY = 24 * 3600


class Egress:
    """Sends what the contract names, and counts its bytes by field."""

    def __init__(self, session: Session, topics: Topics, device: str, ledger: Path) -> None:
        self.session = session
        self.topics = topics
        self.device = device
        self.path = ledger
        self.ledger: Counter[str] = Counter()

    def open(self) -> None:
        """Go on with the ledger where an earlier process left it."""
        if not self.path.exists():
            return
        try:
            counts = json.loads(self.path.read_bytes())
            self.ledger = Counter({str(name): int(count) for name, count in counts.items()})
        except (ValueError, AttributeError, OSError) as error:
            raise StoreError(f"{self.path}: unreadable ({error}); restore or remove it") from None

    def status(self, status: Status) -> None:
        payload = encode(status)
        self.ledger["status"] += len(payload)
        self.session.publish(self.topics.device(self.device, "status"), payload, retain=True)

    def update(
        self,
        report: Report,
        payload: bytes,
        allowed: frozenset[str],
        only: tuple[int, ...] | None = None,
    ) -> None:
        """Send a report and all chunks of its update, or only some chunks again."""
        if only is None:
            self._report(report, allowed)
        fields = tensors.spans(payload)
        indices = range(report.manifest.chunks) if only is None else only
        for index in indices:
            if not 0 <= index < report.manifest.chunks:
                continue
            chunk = chunks.pack(payload, report.manifest, index)
            self._count(chunk, index * report.manifest.chunk_bytes, fields)
            topic = self.topics.update(self.device, report.version, index)
            self.session.publish(topic, chunk, expiry=CHUNK_EXPIRY)
        self.save()

    def save(self) -> None:
        replace_file(self.path, json.dumps(self.ledger, indent=1).encode())

    def _report(self, report: Report, allowed: frozenset[str]) -> None:
        for name, value in report.scalars.items():
            if name not in allowed or not isinstance(value, float) or not math.isfinite(value):
                raise EgressError(f"scalar '{name}' is not in the method's contract, or not finite")
        payload = encode(report)
        in_scalars = 0
        for name, value in report.scalars.items():
            size = len(json.dumps({name: value}, separators=(",", ":"))) - 2
            self.ledger[f"scalar {name}"] += size
            in_scalars += size
        self.ledger["report"] += len(payload) - in_scalars
        self.session.publish(self.topics.device(self.device, "report"), payload)

    def _count(self, chunk: bytes, start: int, fields: dict[str, tuple[int, int]]) -> None:
        """Book a chunk's bytes under the tensors that it carries a piece of."""
        header = chunks.HEADER.size
        end = start + len(chunk) - header
        booked = 0
        for name, (first, last) in fields.items():
            size = min(end, last) - max(start, first)
            if size > 0:
                self.ledger[f"tensor {name}"] += size
                booked += size
        self.ledger["framing"] += len(chunk) - booked
