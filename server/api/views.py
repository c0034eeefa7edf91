"""The coordinator as its API shows it, read in the coordinator's loop."""

from __future__ import annotations

import math

from fededge._internal.suggestions import unknown
from fededge_server.api.errors import NotFoundError
from fededge_server.api.schema import DeviceView, StatusView
from fededge_server.machine.events import ACCURACY
from fededge_server.machine.fleet.census import Group
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.fleet.parts import Part
from fededge_server.parts import CoordinatorParts

__all__ = ["device", "devices", "doing", "status", "waiting"]

WORDS = {Part.STORED: "accepted", Part.EXCUSED: "resting"}

MOST_NAMED = 20
"""Devices that a sentence names."""


def status(parts: CoordinatorParts) -> StatusView:
    """The round, the version, and each device."""
    view, rounds = parts.view, parts.config.rounds
    left = max(0.0, view.deadline - parts.clock()) if view.phase == "open" else None
    return StatusView(
        federation=parts.config.federation,
        coordinator="running",
        round=view.round + 1,
        rounds=rounds.count,
        phase=view.phase,
        paused=view.paused,
        version=view.version,
        accuracy=parts.versions.progress.accuracy,
        quorum=rounds.quorum,
        asked=view.asked,
        answered=parts.rounds.end.answered,
        waits_for=waiting(parts),
        deadline_left=left,
        problem=parts.message.problem,
        devices=devices(parts),
    )


def devices(parts: CoordinatorParts) -> list[DeviceView]:
    now = parts.clock()
    return [_device(one, now) for _, one in sorted(parts.rounds.participants.items())]


def device(parts: CoordinatorParts, name: str) -> DeviceView:
    """One device; NotFoundError if nobody has heard of it."""
    participants = parts.rounds.participants
    if name not in participants:
        raise NotFoundError(unknown("device", name, participants))
    return _device(participants[name], parts.clock())


def _device(one: Participant, now: float) -> DeviceView:
    status = one.status
    return DeviceView(
        device=one.device,
        standing=one.ordered(now).value,
        attendance=one.attendance.value,
        part=one.part.value,
        doing=doing(one),
        why=one.why,
        rest_left=_left(one.rested_until, now),
        quarantined=one.quarantined(now),
        activity=status.activity if status is not None else None,
        problem=status.problem if status is not None else "",
        examples=one.announced,
        seen=None if one.heard is None else now - one.heard,
        accuracy=None if one.accepted is None else one.accepted.scalars.get(ACCURACY),
        took=one.took,
        chunks=_chunks(one),
        backoff_left=_left(one.backoff_until, now),
        software=status.software if status is not None else "",
    )


def doing(one: Participant) -> str:
    """A participant's part in the round, in an operator's words."""
    active = one.status.activity if one.status is not None else ""
    if one.part is Part.INVITED:
        return active if active in ("training", "fetching") else "asked"
    return WORDS.get(one.part) or str(one.part.value)


def waiting(parts: CoordinatorParts) -> str:
    """One sentence on what the rounds wait for; empty if for nothing."""
    state, count = parts.rounds.state, parts.rounds.participants.count
    config = state.config
    if state.full:
        return "space on the coordinator's disk"
    if state.phase == "open":
        awaited = [one.device for one in parts.rounds.participants.where(Group.AWAITED)]
        named = ", ".join(awaited[:MOST_NAMED]) + " and others" * (len(awaited) > MOST_NAMED)
        return f"the updates of {named}" if awaited else f"a quorum of {config.quorum} updates"
    if state.phase != "waiting":
        return ""
    if state.paused:
        return "`fededge resume`: an operator has paused the federation"
    there, eligible = count(Group.THERE), count(Group.ELIGIBLE)
    if there < config.min_devices:
        return f"devices: {there} of {config.min_devices} are there"
    if eligible < config.quorum:
        return f"devices: {eligible} of {config.quorum} can be asked"
    return ""


def _chunks(one: Participant) -> tuple[int, int] | None:
    """How many chunks have come of how many, while it sends."""
    if one.part is not Part.SENDING or one.transfer is None:
        return None
    return len(one.transfer.assembly.have), one.transfer.report.manifest.chunks


def _left(until: float | None, now: float) -> float | None:
    return until - now if until is not None and now < until < math.inf else None
