"""The last day of certificates: the broker's, and this side's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from fededge.credentials.inspection import read_certificate
from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.on_broker.reach import handshake
from fededge.doctor.subject import Subject

__all__ = ["SOON", "brokers", "own"]

DAY = 86400.0
SOON = 30 * DAY
"""Seconds before its end in which a certificate is to be renewed."""


def own(subject: Subject) -> Iterator[Diagnosis]:
    path = subject.config.broker.certificate
    if not path:
        return
    facts = read_certificate(Path(path))
    left = facts.until - subject.box.wall()
    if left < SOON:
        name = "certificate-expires-soon" if left > 0 else "certificate-expired"
        yield found(name, f"{path}: {_when(facts.until, left)}", **subject.values)


def brokers(subject: Subject) -> Iterator[Diagnosis]:
    broker = subject.config.broker
    if not broker.tls:
        return
    until = handshake(broker, subject.box.timeout)
    left = until - subject.box.wall()
    if left < SOON:
        what = f"the broker's certificate: {_when(until, left)}"
        yield found("tls-expires-soon", what, **subject.values)


def _when(until: float, left: float) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime(until))
    return f"it expires on {day}, in {left / DAY:.0f} days" if left > 0 else f"it expired on {day}"
