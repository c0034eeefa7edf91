"""New settings come into force between two rounds: the rounds go on by them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fededge.config import RoundsConfig
from fededge.hardware.hours import parse_hours
from fededge_server.machine.events import Command, PublishState, RolledBack, RunFinished
from fededge_server.machine.facts import RunFacts
from fededge_server.machine.rounds.rollout import Staging
from fededge_server.machine.rounds.rounds import Rounds

__all__ = ["SettingsChanged", "TakeEffect", "change_settings"]


@dataclass(frozen=True)
class TakeEffect:
    """A command: put the ordered settings in force, in the journal first."""


@dataclass(frozen=True)
class SettingsChanged:
    """An event: the journal has other settings in force.

    `version` begins with them, because devices train by other terms; empty if the current one
    stays. `staging` is the rollout from now on.
    """

    facts: RunFacts
    rounds: RoundsConfig
    staging: Staging | None
    version: str = ""


def change_settings(rounds: Rounds, event: SettingsChanged, now: float) -> list[Command]:
    """Go on by the new settings; with a version of its own as after a rollback.

    Late updates for the versions before were trained by the old settings: none is taken any more.
    """
    state = rounds.state
    rounds.config = state.config = rounds.eligibility.config = event.rounds
    state.facts, state.limit, state.changing = event.facts, None, False
    schedule = rounds.schedule
    schedule.config, schedule.hours = event.rounds, parse_hours(event.rounds.hours)
    schedule.flat.gain = event.rounds.rest_gain
    for one in rounds.participants.values():
        rounds.participants.census.changed[one.device] = one  # its groups go by the settings
    if event.version:
        return rounds.handle(RolledBack(event.version, "the settings have changed"), now)
    finished = _follow_count(rounds)
    return [*finished, PublishState(), *rounds.advance(now)]


def _follow_count(rounds: Rounds) -> list[Command]:
    """End the run, or go on with one that was done, if the number of rounds says so now."""
    state, over = rounds.state, rounds.config.over(rounds.state.round)
    if over == (state.phase == "done"):
        return []
    state.phase = "done" if over else "waiting"
    state.resting, state.rests_until = "", math.inf
    return [RunFinished()] if over else []
