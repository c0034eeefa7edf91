"""Recovery: the rounds take up what an earlier process of the coordinator had begun."""

from __future__ import annotations

from collections.abc import Mapping

from fededge_server.machine.facts import Recalled
from fededge_server.machine.fleet.participants import UNTOLD
from fededge_server.machine.fleet.parts import Part
from fededge_server.machine.rounds.round_state import RoundState
from fededge_server.machine.updates.updates import Updates

__all__ = ["recover"]


def recover(
    state: RoundState, updates: Updates, recalled: Recalled, now: float
) -> Mapping[str, int] | None:
    """Put back what the journal has; its clock was another one.

    Returns:
        The devices that the open round had asked, with their examples; None if it had not begun.
    """
    of = state.participants.of
    state.recent.update(recalled.recent)
    state.asked.update({v: a for v, a in recalled.asked.items() if v in state.recent})
    for device in recalled.known:
        one = of(device)
        one.known = one.listed = True
        one.trained = UNTOLD
    for device, report in recalled.accepted.items():
        one, norm = of(device), recalled.norms.get(device)
        one.accepted = report
        one.trained = recalled.asked.get(report.version, {}).get(device, UNTOLD)
        if report.version == state.version or device in recalled.stored:
            one.move(Part.STORED)
            one.stored, one.change = report, norm or 0.0
        else:
            one.merged_change = norm
    for device in recalled.quarantined:
        updates.eligibility.quarantine(of(device), now)
    state.paused, state.changing = recalled.paused, recalled.changing
    for device, (standing, seconds) in recalled.standings.items():
        one = of(device)
        one.standing, one.rested_until = standing, now + seconds
    for device, (report, have) in recalled.coming.items():
        if device in recalled.asked.get(report.version, {}):  # else it was forgotten since
            updates.resume(of(device), report, have, now)
    return recalled.asked.get(state.version)
