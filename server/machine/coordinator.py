"""The rounds, the rollout and the orders as one machine: all that a coordinator's shell drives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fededge_server.machine import events
from fededge_server.machine.fleet import orders
from fededge_server.machine.fleet.order_effects import OrderEffects
from fededge_server.machine.fleet.participants import ForbiddenMoveError
from fededge_server.machine.rounds import rollout
from fededge_server.machine.rounds.new_settings import (
    SettingsChanged,
    TakeEffect,
    change_settings,
)
from fededge_server.machine.rounds.rounds import Rounds

__all__ = ["Command", "CoordinatorMachine", "Event"]

Event = events.Event | rollout.Event | orders.OrderGiven | SettingsChanged
Command = events.Command | rollout.Command | orders.ClearStatus | orders.ControlUser | TakeEffect


@dataclass
class CoordinatorMachine:
    """Routes each event to the machines that know it, and joins their commands.

    Those of the rounds come first: what a full disk drops of the rollout, the rollout repeats.
    """

    rounds: Rounds
    staging: rollout.Staging | None

    def handle(self, event: Event, now: float) -> list[Command]:
        commands = self._handle(event, now)
        state = self.rounds.state
        if state.changing and self.rounds.between_rounds and not state.full:
            commands.append(TakeEffect())
        return commands

    def _handle(self, event: Event, now: float) -> list[Command]:
        if isinstance(event, orders.OrderGiven):
            return [*OrderEffects(self.rounds, self.staging).handle(event, now)]
        if isinstance(event, SettingsChanged):
            self.staging = event.staging
            return [*change_settings(self.rounds, event, now)]
        return [*self._round(event, now), *self._stage(event, now)]

    def _round(self, event: Event, now: float) -> Sequence[Command]:
        """The rounds' commands. No device ends the run with an event that meets a bug of ours."""
        if not isinstance(event, events.Event):
            return []
        try:
            return self.rounds.handle(event, now)
        except ForbiddenMoveError as error:
            if isinstance(event, events.MergeDone | events.RolledBack):
                raise  # the journal has a new version: only a restart catches up with it
            self.rounds.participants.of(error.device).set_aside()
            return [events.SetAside(error.device, error.move)]

    def _stage(self, event: Event, now: float) -> Sequence[Command]:
        """The rollout's commands; while the disk is full, time alone leads to none."""
        if self.staging is None or not isinstance(event, rollout.Event):
            return []
        waits = isinstance(event, events.Tick) and self.rounds.view(now).full
        return [] if waits else self.staging.handle(event, now)
