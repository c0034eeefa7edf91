"""With --deep: the messages of one round, with chunks of the configured size, through the broker.

They belong to a federation that does not exist. A closed broker does not carry these; there the
topics are those that this user may write and read. What was retained is cleared.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from fededge.config import AgentConfig
from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.on_broker.access import NOBODY, VERSION, tells
from fededge.doctor.on_broker.broker_limits import chunk_bytes
from fededge.doctor.subject import Subject
from fededge.transport.probing import GRANTED, Probing
from fededge.wire.messages import Claim, encode
from fededge.wire.topics import Topics

__all__ = ["chunks"]

QUIET = 2.0
"""Seconds that a message may take."""


@dataclass(frozen=True)
class Letter:
    """A message of the fake round; `heard`: it must come back."""

    topic: str
    payload: bytes
    retain: bool = False
    heard: bool = True


def chunks(subject: Subject) -> Iterator[Diagnosis]:
    """Send every message of a round and receive it again."""
    if not subject.deep:
        return
    assert subject.line is not None
    line, size = subject.line, chunk_bytes(subject)
    probe = Topics(f"doctor-{uuid.uuid4().hex[:12]}")
    open_ = tells(subject) and 0 <= line.publish(probe.state, b"") < GRANTED
    letters = _round(probe, size) if open_ else _confined(subject, size)
    try:
        line.subscribe([letter.topic for letter in letters if letter.heard])
        for letter in letters:
            why = _lost(line, letter)
            if why:
                what = f"{letter.topic}, {len(letter.payload):,} bytes: {why}"
                yield found("chunk-lost", what, **subject.values)
                return
    finally:
        for letter in letters:
            if letter.retain and not line.lost:
                line.publish(letter.topic, b"", retain=True)


def _round(topics: Topics, size: int) -> list[Letter]:
    """State, model, task, status, report, update and reply of one device."""
    device = [topics.device(NOBODY, kind) for kind in ("task", "status", "report", "reply")]
    task, status, report, reply = (Letter(topic, os.urandom(200)) for topic in device)
    return [
        Letter(topics.state, os.urandom(2000), retain=True),
        Letter(topics.model(VERSION, 0), os.urandom(size), retain=True),
        task,
        status,
        report,
        Letter(topics.update(NOBODY, VERSION, 0), os.urandom(size)),
        reply,
    ]


def _confined(subject: Subject, size: int) -> list[Letter]:
    """Write what one user of a closed broker may write: a device hears its own claims alone."""
    topics, nonce = subject.topics, Claim(uuid.uuid4().hex)
    if isinstance(subject.config, AgentConfig):
        own = subject.config.device
        return [
            Letter(topics.update(own, VERSION, 0), os.urandom(size), heard=False),
            Letter(topics.device(own, "claim"), encode(nonce)),
        ]
    return [Letter(topics.update(NOBODY, VERSION, 0), os.urandom(size))]


def _lost(line: Probing, letter: Letter) -> str:
    """Why a message did not make its way; empty if it did."""
    code = line.publish(letter.topic, letter.payload, letter.retain)
    if line.lost:
        return f"the broker closed the connection ({line.lost})"
    if code < 0 or code >= GRANTED:
        return "the broker did not take it" if code < 0 else f"the broker refused it ({code:#x})"

    def came() -> bool:
        return any((m.topic, m.payload) == (letter.topic, letter.payload) for m in line.heard)

    if letter.heard:
        line.listen(QUIET, came)
        return "" if came() else "it did not come back"
    return ""
