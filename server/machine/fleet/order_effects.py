"""The effects of an operator's orders on the rounds and on the fleet. Each is in the journal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fededge.wire.messages import Reply
from fededge_server.machine.events import Command, Discard, Note, PublishState, SendReply
from fededge_server.machine.fleet.orders import (
    ApplyOrder,
    ClearStatus,
    ControlUser,
    DeviceOrder,
    DrainOrder,
    ForgetOrder,
    OrderGiven,
    PauseOrder,
    PinOrder,
    QuarantineOrder,
    ReleaseOrder,
    RestOrder,
    ResumeOrder,
    RevokeOrder,
    UnpinOrder,
    VersionOrder,
)
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.fleet.parts import Part
from fededge_server.machine.fleet.standings import SHUT_OUT, Standing
from fededge_server.machine.rounds.rollout import Staging
from fededge_server.machine.rounds.rounds import Rounds

__all__ = ["EFFECTS", "OrderEffects"]

AnyCommand = Command | ClearStatus | ControlUser


@dataclass(frozen=True)
class OrderEffects:
    """Carries out orders on the rounds, and on the rollout if there is one."""

    rounds: Rounds
    staging: Staging | None

    def handle(self, event: OrderGiven, now: float) -> list[AnyCommand]:
        """Carry an order out; a round that waited for nobody else ends."""
        order = event.order
        self.rounds.participants.census.advance(now)
        commands = EFFECTS[type(order)](self, order, now)
        device = order.device if isinstance(order, DeviceOrder) else ""
        note = Note(f"ordered by the operator: {order.name}", device)
        return [note, *commands, *self.rounds.advance(now)]

    def pause(self, order: PauseOrder, now: float) -> list[AnyCommand]:
        self.rounds.state.paused = True
        return [PublishState()]

    def resume(self, order: ResumeOrder, now: float) -> list[AnyCommand]:
        self.rounds.state.paused = False
        return [PublishState()]

    def apply(self, order: ApplyOrder, now: float) -> list[AnyCommand]:
        """Settings come into force between rounds: at once if none is open."""
        self.rounds.state.changing = True
        return []

    def keep_files(self, order: VersionOrder, now: float) -> list[AnyCommand]:
        """A pin changes no round: who prunes the files reads it in the journal."""
        return []

    def drain(self, order: DrainOrder, now: float) -> list[AnyCommand]:
        return self._off_call(order.device, Standing.DRAINED, math.inf)

    def rest(self, order: RestOrder, now: float) -> list[AnyCommand]:
        return self._off_call(order.device, Standing.RESTED, now + order.seconds)

    def _off_call(self, device: str, standing: Standing, until: float) -> list[AnyCommand]:
        """The device is not asked any more; a turn that it has begun, it ends."""
        one = self.rounds.participants.of(device)
        one.standing, one.rested_until = standing, until
        if one.part is Part.BACKOFF:
            one.move(Part.EXCUSED)
        return [*self.rounds.invitations.substitutes()]

    def release(self, order: ReleaseOrder, now: float) -> list[AnyCommand]:
        """The open round goes on without the device, unless the round has a place for it.

        The broker is told of a device that is not there as well: it may deny one that a restored
        journal takes for active or drained.
        """
        one = self.rounds.participants.of(order.device)
        shut = one.standing is Standing.REVOKED or not one.online
        let_in = [ControlUser(one.device, denied=False)] * shut
        one.standing, one.quarantined_until, one.verdicts = Standing.ACTIVE, -math.inf, ()
        if one.status is None:
            return [*let_in]
        return [*let_in, *self.rounds.invitations.ask_if_free(one, one.status, now)]

    def quarantine(self, order: QuarantineOrder, now: float) -> list[AnyCommand]:
        one = self.rounds.participants.of(order.device)
        one.standing = Standing.QUARANTINED
        return self._put_out(one, SHUT_OUT[Standing.QUARANTINED], now)

    def revoke(self, order: RevokeOrder, now: float) -> list[AnyCommand]:
        """The device is gone for the rounds, whatever it says."""
        one = self.rounds.participants.of(order.device)
        one.standing = Standing.REVOKED
        one.leave()
        out = self._put_out(one, SHUT_OUT[Standing.REVOKED], now)
        return [*out, ControlUser(one.device, denied=True)]

    def forget(self, order: ForgetOrder, now: float) -> list[AnyCommand]:
        """Remove every record; what the device sends is that of one that nobody has asked."""
        rounds, device = self.rounds, order.device
        out = self._put_out(rounds.participants.of(device), "the device was forgotten", now)
        rounds.participants.forget(device)
        state = rounds.state
        if rounds.begun is not None:  # an earlier process had asked it, and the round is to go on
            rounds.begun = _without(rounds.begun, device) or None
        state.asked = {v: _without(asked, device) for v, asked in state.asked.items()}
        state.unwritten = {k: r for k, r in state.unwritten.items() if k[0] != device}
        if self.staging is not None:
            self.staging.known.discard(device)
            self.staging.said.pop(device, None)
        return [*out, ClearStatus(device), *rounds.invitations.substitutes()]

    def _put_out(self, one: Participant, reason: str, now: float) -> list[AnyCommand]:
        """Take a device out of the open round, and refuse its update."""
        sent = one.stored or (one.transfer.report if one.transfer else None)
        refused: list[AnyCommand] = []
        if sent is not None:
            reply = SendReply(one.device, Reply("refused", sent.version, reason))
            refused = [Discard(one.device, sent.version), reply]
        if one.part is Part.STORED:
            one.accepted = None
            self._reopen(now)
        if one.part not in (Part.IDLE, Part.QUARANTINED):
            one.move(Part.QUARANTINED if one.invited else Part.IDLE)
        return [*refused, *self.rounds.invitations.substitutes()]

    def _reopen(self, now: float) -> None:
        """A merge that a full disk put off must not count an update that was put out."""
        state = self.rounds.state
        if state.phase == "merging":
            state.phase, state.deadline = "open", now + state.config.deadline


def _without(asked: Mapping[str, int], device: str) -> dict[str, int]:
    return {other: examples for other, examples in asked.items() if other != device}


EFFECTS: dict[type, Callable[[OrderEffects, Any, float], list[AnyCommand]]] = {
    DrainOrder: OrderEffects.drain,
    RestOrder: OrderEffects.rest,
    QuarantineOrder: OrderEffects.quarantine,
    ReleaseOrder: OrderEffects.release,
    RevokeOrder: OrderEffects.revoke,
    ForgetOrder: OrderEffects.forget,
    PauseOrder: OrderEffects.pause,
    ResumeOrder: OrderEffects.resume,
    ApplyOrder: OrderEffects.apply,
    PinOrder: OrderEffects.keep_files,
    UnpinOrder: OrderEffects.keep_files,
}
"""The effect of each order."""
