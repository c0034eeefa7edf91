"""The census: which devices are in which groups, kept as they change and as time passes.

A question costs what has changed since the last one, not the size of the fleet. Every record puts
itself down when one of its fields changes, and is filed anew before the next question; backoffs,
quarantines and leases end by a heap of times. So no group can drift from the records.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from fededge_server.machine.fleet.parts import Part

__all__ = ["Census", "Group", "Record"]


class Group(enum.Enum):
    """A group of devices that the rounds ask about; `Eligibility.groups` has the conditions."""

    KNOWN = "known"
    THERE = "there"
    ELIGIBLE = "eligible"
    FREE = "free"
    ONLINE = "online"
    GONE = "gone"
    QUARANTINED = "quarantined"
    INVITED = "invited"
    PLACED = "placed"
    WANTED = "wanted"
    AWAITED = "awaited"
    EXPECTED = "expected"
    ANSWERED = "answered"
    RETRIED = "retried"
    UNWRITTEN = "unwritten"
    UNLISTED = "unlisted"

    __hash__ = object.__hash__  # an enum's own hash is slow, and these are hashed all the time


class Record(Protocol):
    """A record of the census, by the id of its device."""

    device: str


R = TypeVar("R", bound=Record)
Key = Group | Part
NOWHERE: frozenset[Key] = frozenset()


@dataclass
class Census(Generic[R]):
    """The groups of a fleet.

    Attributes:
        groups: the groups that a record is in at a time.
        ends: the times at which it may change groups by itself.
        changed: records that are to be filed anew; they put themselves down.
        now: the time of the census.
        filed: the groups in which each record was found last.
        sorts: the combinations of groups that have occurred, so that records share them.
        members: the records of each group.
        due: the next time at which each record is looked at; `times` has them in a heap.
    """

    groups: Callable[[R, float], Iterable[Key]]
    ends: Callable[[R], Iterable[float]]
    changed: dict[str, R] = field(default_factory=dict)
    now: float = -math.inf
    filed: dict[str, frozenset[Key]] = field(default_factory=dict)
    sorts: dict[frozenset[Key], frozenset[Key]] = field(default_factory=dict)
    members: dict[Key, dict[str, R]] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    times: list[tuple[float, str, R]] = field(default_factory=list)

    def advance(self, now: float) -> None:
        """Let time pass: records whose times have come are filed anew."""
        self.now = max(self.now, now)
        while self.times and self.times[0][0] <= self.now:
            time, device, record = heapq.heappop(self.times)
            if self.due.get(device) == time:  # else it was put down again, for an earlier time
                del self.due[device]
                self.changed[device] = record

    def count(self, group: Key) -> int:
        self._settle()
        return len(self.members.get(group, ()))

    def of(self, *groups: Key) -> list[R]:
        """The records of these groups, which must not overlap, in the order of their ids."""
        self._settle()
        found = [record for group in groups for record in self.members.get(group, {}).values()]
        return sorted(found, key=lambda record: record.device)

    def forget(self, device: str) -> None:
        """Take a record out of all groups; a later one of the same id is new."""
        for group in self.filed.pop(device, NOWHERE):
            del self.members[group][device]
        self.changed.pop(device, None)
        self.due.pop(device, None)
        self.times = [entry for entry in self.times if entry[1] != device]
        heapq.heapify(self.times)

    def _settle(self) -> None:
        while self.changed:
            device, record = self.changed.popitem()
            self._file(device, record)
            self._put_down(device, record)

    def _file(self, device: str, record: R) -> None:
        before, after = self.filed.get(device, NOWHERE), frozenset(self.groups(record, self.now))
        if before == after:
            return
        for group in before - after:
            del self.members[group][device]
        for group in after - before:
            self.members.setdefault(group, {})[device] = record
        self.filed[device] = self.sorts.setdefault(after, after)

    def _put_down(self, device: str, record: R) -> None:
        """Look at a record again when its next time comes, if not before."""
        coming = min((end for end in self.ends(record) if end > self.now), default=math.inf)
        if coming < self.due.get(device, math.inf):
            self.due[device] = coming
            heapq.heappush(self.times, (coming, device, record))
