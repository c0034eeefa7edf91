"""The access list as this user meets it: topics that it needs, and one that it must not write.

A topic is tried with an empty message that is not retained. Coordinators and agents ignore those.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from fededge.config import AgentConfig, BrokerConfig
from fededge.credentials.inspection import read_certificate
from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.running import runs
from fededge.doctor.subject import Subject
from fededge.errors import TransportError
from fededge.transport.probing import GRANTED, Probing

__all__ = ["NOBODY", "VERSION", "forbidden", "identity", "reading", "strangers", "tells", "writing"]

NOBODY = "doctor.probe"
"""The id of a device that does not exist."""

VERSION = "000000-" + 16 * "0"
"""A version that no federation has."""

CHUNK = 999_999


def identity(subject: Subject) -> Iterator[Diagnosis]:
    """A closed broker lets the user `gate-7` write below `device/gate-7` alone."""
    config, broker = subject.config, subject.config.broker
    user = broker.username
    if not user and broker.certificate:
        user = read_certificate(Path(broker.certificate)).name
    if isinstance(config, AgentConfig) and user and user != config.device:
        what = f"the broker knows this device as '{user}', its id is '{config.device}'"
        yield found("username-not-device", what, **subject.values, user=user)


def reading(subject: Subject) -> Iterator[Diagnosis]:
    """Brokers that check an access list at SUBSCRIBE say so; Mosquitto's acl_file does not."""
    assert subject.line is not None
    topics = subject.topics
    if isinstance(subject.config, AgentConfig):
        kinds = ("task", "reply", "claim", "status")
        wanted = [topics.state, f"{topics.coordinator}/status", topics.model(VERSION)]
        wanted += [topics.device(subject.name, kind) for kind in kinds]
    else:
        wanted = [topics.state, f"{topics.coordinator}/status", topics.update("+", "+")]
        wanted += [topics.device("+", kind) for kind in ("status", "report")]
    for topic, code in subject.line.subscribe(wanted).items():
        if code >= GRANTED:
            what = f"the broker refuses a subscription to {topic} ({code:#x})"
            yield found("read-denied", what, **subject.values)


def writing(subject: Subject) -> Iterator[Diagnosis]:
    """Only MQTT 5 has an answer that tells a message that was denied from one that was taken."""
    for topic in _written(subject) if tells(subject) else ():
        assert subject.line is not None
        if subject.line.publish(topic, b"") >= GRANTED:
            yield found("write-denied", f"the broker refuses {topic}", **subject.values)


def _written(subject: Subject) -> list[str]:
    """Topics that this side writes; those that a running service watches are left out."""
    topics, own = subject.topics, subject.name
    idle = not runs(subject.folder)
    if isinstance(subject.config, AgentConfig):
        wanted = [topics.device(own, "report"), topics.update(own, VERSION, CHUNK)]
        return wanted + ([topics.device(own, "status")] if idle else [])
    wanted = [topics.device(NOBODY, kind) for kind in ("task", "reply", "report")]
    wanted.append(topics.model(VERSION, CHUNK))
    return wanted + ([topics.state] if idle else [])


def forbidden(subject: Subject) -> Iterator[Diagnosis]:
    """A device must not publish a model, and nobody may speak for another device."""
    if not tells(subject) or not _named(subject.config.broker):
        return
    assert subject.line is not None
    topics = subject.topics
    agent = isinstance(subject.config, AgentConfig)
    topic = topics.model(VERSION, CHUNK) if agent else topics.device(NOBODY, "status")
    if 0 <= subject.line.publish(topic, b"") < GRANTED:
        what = f"user '{subject.name}' may write {topic}, which is not its own"
        yield found("access-too-wide", what, **subject.values)


def strangers(subject: Subject) -> Iterator[Diagnosis]:
    """A broker that takes in clients without a name protects nothing."""
    broker = subject.config.broker
    if _named(broker):
        nobody = msgspec.structs.replace(
            broker, username="", password="", password_file="", certificate="", key=""
        )
        try:
            with Probing(nobody, subject.box.timeout) as line:
                open_ = line.connected
        except (OSError, TransportError):
            open_ = False
    else:
        open_ = True
    if open_:
        what = "the broker takes in clients without a password or certificate"
        yield found("broker-open", what, **subject.values)


def _named(broker: BrokerConfig) -> bool:
    return bool(broker.username or broker.certificate)


def tells(subject: Subject) -> bool:
    """True if the broker's answer to a message says whether it was denied."""
    limits = {} if subject.welcome is None else subject.welcome.limits
    return subject.config.broker.protocol == "5" and limits.get("MaximumQoS") != 0
