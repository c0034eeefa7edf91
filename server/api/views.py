"""The coordinator as its API shows it, read in the coordinator's loop."""

from __future__ import annotations

import math

from fededge._internal.suggestions import unknown
from fededge_server.api.errors import NotFoundError
from fededge_server.api.schema import DeviceView, StatusView
from fededge_server.machine.events import ACCURACY
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.fleet.parts import Part
from fededge_server.parts import CoordinatorParts

__all__ = ["device", "devices", "status"]


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
        rest_left=_left(one.rested_until, now),
        quarantined=one.quarantined(now),
        activity=status.activity if status is not None else None,
        problem=status.problem if status is not None else "",
        examples=one.announced,
        seen=None if one.heard is None else now - one.heard,
        accuracy=None if one.accepted is None else one.accepted.scalars.get(ACCURACY),
        chunks=_chunks(one),
        backoff_left=_left(one.backoff_until, now),
        software=status.software if status is not None else "",
    )


def _chunks(one: Participant) -> tuple[int, int] | None:
    """How many chunks have come of how many, while it sends."""
    if one.part is not Part.SENDING or one.transfer is None:
        return None
    return len(one.transfer.assembly.have), one.transfer.report.manifest.chunks


def _left(until: float | None, now: float) -> float | None:
    return until - now if until is not None and now < until < math.inf else None
