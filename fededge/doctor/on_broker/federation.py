"""The federation's retained messages: its state, its coordinator, this device's own status."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from fededge._internal.plain_text import plain
from fededge.config import AgentConfig
from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.running import runs
from fededge.doctor.subject import Subject
from fededge.errors import WireError
from fededge.transport.probing import Heard
from fededge.wire.messages import Presence, State, Status, decode
from fededge.wire.signing import verify
from fededge.wire.topics import Topics

__all__ = ["retained"]

QUIET = 0.4
"""Seconds without a message after which all retained ones have arrived."""

EVERY_STATE = Topics("+").state


def retained(subject: Subject) -> Iterator[Diagnosis]:
    """Read the retained messages, and judge them as an agent would."""
    assert subject.line is not None
    line, topics, config = subject.line, subject.topics, subject.config
    wanted = [topics.state, f"{topics.coordinator}/status"]
    wanted += [topics.device(config.device, "status")] if isinstance(config, AgentConfig) else []
    line.subscribe([*wanted, EVERY_STATE])
    line.listen(QUIET)
    if line.lost:
        what = f"the broker closed the connection ({line.lost})"
        yield found("connection-refused", what, **subject.values)
        return
    heard = {message.topic: message for message in line.heard if message.payload}
    yield from _read(subject, heard)
    if isinstance(config, AgentConfig):
        yield from _as_agent(subject, config, heard)
    else:
        yield from _rival(subject, subject.presence, "a coordinator of this federation")
    if subject.state is not None and subject.state.problem:
        yield found("federation-problem", plain(subject.state.problem), **subject.values)


def _read(subject: Subject, heard: dict[str, Heard]) -> Iterator[Diagnosis]:
    """Decode the three messages into the subject."""
    topics = subject.topics
    try:
        if topics.state in heard:
            subject.state = decode(heard[topics.state].payload, State)
        if f"{topics.coordinator}/status" in heard:
            presence = heard[f"{topics.coordinator}/status"].payload
            subject.presence = decode(presence, Presence)
        own = topics.device(subject.name, "status")
        if own in heard:
            subject.status = decode(heard[own].payload, Status)
    except WireError as error:
        yield found("state-invalid", str(error), **subject.values)


def _as_agent(
    subject: Subject, config: AgentConfig, heard: dict[str, Heard]
) -> Iterator[Diagnosis]:
    state = subject.state
    if subject.topics.state not in heard:
        yield found("federation-unknown", _unknown(subject, heard), **subject.values)
    if state is not None:
        yield from _signature(subject, config, state)
        yield from _acceptable(subject, config, state)
        if subject.presence is None or not subject.presence.online:
            what = f"the coordinator is offline; its state is of round {state.round}"
            yield found("coordinator-offline", what, **subject.values)
    yield from _rival(subject, subject.status, f"an agent '{config.device}'")


def _rival(subject: Subject, holder: Presence | Status | None, who: str) -> Iterator[Diagnosis]:
    """The process that is online under our name, while no service runs with our state folder."""
    if holder is not None and holder.online and not runs(subject.folder):
        what = f"{who} is online, and none runs with this state folder"
        yield found("name-in-use", what, **subject.values)


def _unknown(subject: Subject, heard: dict[str, Heard]) -> str:
    """The findings about a name without a state; other names show on an open broker only."""
    name = subject.config.federation
    others = [topic.split("/")[2] for topic in heard if topic.endswith("/state")]
    close = difflib.get_close_matches(name, others, n=1)
    what = f"the broker has no state of a federation '{name}'"
    if close:
        return f"{what}; did you mean '{close[0]}'?"
    return f"{what}; it has: {', '.join(sorted(others)[:5])}" if others else what


def _signature(subject: Subject, config: AgentConfig, state: State) -> Iterator[Diagnosis]:
    if not config.trusted_key:
        return
    from fededge.credentials.signing_keys import read_trusted_keys

    try:
        verify(state, read_trusted_keys(Path(config.trusted_key)))
    except WireError as error:
        yield found("signature-refused", str(error), key=config.trusted_key)


def _acceptable(subject: Subject, config: AgentConfig, state: State) -> Iterator[Diagnosis]:
    """Compare the federation's model and method with what this device allows."""
    size = state.manifest.bytes
    if size > config.max_model_bytes:
        what = f"the model has {size:,} bytes, max_model_bytes is {config.max_model_bytes:,}"
        yield found("model-too-large", what, **subject.values, bytes=size)
    files = {reference.rpartition(":")[0] for reference in config.methods}
    known = {_sha256(Path(file)) for file in files}
    for name, sha256 in state.files.items():
        if sha256 not in known:
            what = f"method '{name}' is a file with SHA-256 {sha256[:12]}…, which is not allowed"
            yield found("method-not-allowed", what, **subject.values, method=name)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
