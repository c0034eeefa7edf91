"""Rules for asking devices: failing and silent ones back off, hostile ones are in quarantine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fededge.config import RoundsConfig
from fededge_server.machine.fleet.census import Group
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.fleet.parts import AWAITED, OUT, Attendance, Part

__all__ = ["Eligibility"]

MOST_GIVEN_UP = 3
"""Turns in a row that a device may give up to rest; after that it backs off as a silent one."""

LONGEST_BACKOFF = 3600.0
LONGEST_SILENCE = 24 * 3600.0
"""A silent device may hold up a round once a day, and an honest one comes back that often."""


@dataclass
class Eligibility:
    """The rules, which may change between rounds; they go by each participant's record."""

    config: RoundsConfig

    def groups(self, one: Participant, now: float) -> Iterator[Group | Part]:
        """The groups that a device is in, for the census."""
        yield one.part
        if one.known:
            yield Group.KNOWN
            if not one.listed:
                yield Group.UNLISTED  # the journal has yet to hear of it
        if one.quarantined(now):
            yield Group.QUARANTINED
        if one.attendance is not Attendance.ABSENT:
            yield from self._online(one, now)
        if one.asked is not None:
            yield from self._invited(one, now)

    def _online(self, one: Participant, now: float) -> Iterator[Group]:
        """A device that rests counts as there: it has not told its examples."""
        yield Group.ONLINE
        if not self.leased(one, now):
            yield Group.GONE
        if one.resting or self._enough(one):
            yield Group.THERE
        if one.fresh:
            yield Group.FRESH
        if self.eligible(one, now):
            yield Group.ELIGIBLE
            ready = one.status is not None and one.status.activity == "ready"
            if ready and one.part is Part.IDLE and not one.invited:
                yield Group.FREE

    def _invited(self, one: Participant, now: float) -> Iterator[Group]:
        yield Group.INVITED
        if one.written != one.asked:
            yield Group.UNWRITTEN
        if one.part not in OUT:
            yield Group.PLACED
        if one.part is not Part.EXCUSED:
            yield Group.WANTED
        if one.part is Part.STORED:
            yield Group.ANSWERED
        if one.part in AWAITED:
            yield Group.AWAITED
            if self.leased(one, now):
                yield Group.EXPECTED
        backed_off = one.backoff_until is not None and not one.backs_off(now)
        asked_again = backed_off and one.present and one.on_call(now)
        if asked_again and one.part in (Part.INVITED, Part.BACKOFF):
            yield Group.RETRIED

    def ends(self, one: Participant) -> Iterator[float]:
        """The times at which a device's groups may change by themselves."""
        yield one.quarantined_until
        yield one.rested_until
        if one.backoff_until is not None:
            yield one.backoff_until
        if one.heard is not None:
            yield one.heard + self.config.lease

    def leased(self, one: Participant, now: float) -> bool:
        """True if a device has given a sign of life in time, or nothing is known of it yet."""
        return one.heard is None or now < one.heard + self.config.lease

    def _enough(self, one: Participant) -> bool:
        """True if a device is present, with as much data as a round wants."""
        if one.status is None or not one.present:
            return False
        return one.status.examples >= self.config.min_examples

    def eligible(self, one: Participant, now: float) -> bool:
        """True if a device may be asked now."""
        allowed = one.on_call(now) and not one.quarantined(now)
        return allowed and self._enough(one) and not one.backs_off(now)

    def failed(self, one: Participant, now: float) -> bool:
        """A turn failed: back off, each time twice as long. True if the device may try again."""
        one.failures += 1
        pause = self.config.backoff * 2.0 ** min(one.failures - 1, 20)
        one.backoff_until = now + min(pause, LONGEST_BACKOFF)
        return one.failures <= self.config.retries

    def missed(self, one: Participant, took: float, now: float) -> float:
        """A round waited in vain for `took` seconds: back off, each time twice as long."""
        one.silences += 1
        pause = max(self.config.backoff, took) * 2.0 ** min(one.silences - 1, 20)
        pause = min(pause, LONGEST_SILENCE)
        one.backoff_until = max(now + pause, one.backoff_until or 0.0)
        return pause

    def gave_up(self, one: Participant, took: float, late: bool, now: float) -> None:
        """A device gave its turn up to rest, after `took` seconds of the round.

        That is no failure. But who does so again and again holds every round up, and backs off.
        `late`: the round has waited for it as for one that keeps silent, and it counts as such.
        """
        one.given_up += 1
        if late:
            self.missed(one, took, now)
        over = one.given_up - MOST_GIVEN_UP
        if over > 0:
            pause = max(self.config.backoff, took) * 2.0 ** min(over - 1, 20)
            until = now + min(pause, LONGEST_SILENCE)
            one.backoff_until = max(until, one.backoff_until or 0.0)

    def refused(self, one: Participant, now: float) -> bool:
        """An update was bad. True if the device is quarantined now.

        Good updates in between do not help: the last verdicts count, twice as many as refusals
        that lead to quarantine.
        """
        if not self.config.quarantine_after:
            return False
        self._record(one, refused=True)
        if sum(one.verdicts) < self.config.quarantine_after:
            return False
        self.quarantine(one, now)
        return True

    def quarantine(self, one: Participant, now: float) -> None:
        one.verdicts = ()
        one.quarantined_until = now + self.config.quarantine_seconds

    def well(self, one: Participant) -> None:
        """A good update came: failed turns are forgiven, and half of rests and silent rounds."""
        one.failures, one.backoff_until = 0, None
        one.given_up //= 2
        one.silences //= 2
        if self.config.quarantine_after and one.verdicts:
            self._record(one, refused=False)

    def _record(self, one: Participant, refused: bool) -> None:
        last = 2 * self.config.quarantine_after
        one.verdicts = (*one.verdicts, refused)[-last:]
