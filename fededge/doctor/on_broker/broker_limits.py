"""The limits that the broker announces, against what a federation needs."""

from __future__ import annotations

from collections.abc import Iterator

from fededge.config import CoordinatorConfig
from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.subject import Subject

__all__ = ["chunk_bytes", "features", "packet_size"]

USUAL_CHUNK = 256 * 1024
OVERHEAD = 1024
"""More bytes than topic, header and properties of a chunk take."""

FEATURES = {
    "MaximumQoS": ("qos-too-low", "the broker allows QoS 0 only"),
    "RetainAvailable": ("retain-unsupported", "the broker keeps no retained messages"),
    "WildcardSubscriptionAvailable": ("wildcards-unsupported", "the broker allows no wildcards"),
}


def features(subject: Subject) -> Iterator[Diagnosis]:
    for limit, (name, what) in FEATURES.items():
        if _limits(subject).get(limit) == 0:
            yield found(name, what, **subject.values)


def packet_size(subject: Subject) -> Iterator[Diagnosis]:
    """A broker disconnects the sender of a larger packet."""
    needed, most = chunk_bytes(subject) + OVERHEAD, _limits(subject).get("MaximumPacketSize")
    if most is not None and most < needed:
        what = f"the broker takes packets of {most:,} bytes, a chunk needs {needed:,}"
        values = {**subject.values, "needed": needed, "room": max(1024, most - OVERHEAD)}
        yield found("packet-too-small", what, **values)


def chunk_bytes(subject: Subject) -> int:
    """The size of the federation's chunks: configured, announced, or the usual one."""
    if isinstance(subject.config, CoordinatorConfig):
        return subject.config.transfer.chunk_bytes
    return USUAL_CHUNK if subject.state is None else subject.state.manifest.chunk_bytes


def _limits(subject: Subject) -> dict[str, int]:
    return {} if subject.welcome is None else subject.welcome.limits
