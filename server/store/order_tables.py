"""The operator's orders in the journal: each with its time, and what it leaves behind, at once.

A running coordinator and a command that works on the folder of one that is down write them here.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from fededge._internal.suggestions import unknown
from fededge.errors import RefusedError
from fededge.wire.messages import Report
from fededge_server.machine.fleet.orders import (
    ApplyOrder,
    DeviceOrder,
    DrainOrder,
    ForgetOrder,
    Outcome,
    PauseOrder,
    PinOrder,
    QuarantineOrder,
    ReleaseOrder,
    RestOrder,
    ResumeOrder,
    RevokeOrder,
    UnpinOrder,
)
from fededge_server.machine.fleet.standings import ACTIVE, STANDINGS, Ordered, Standing
from fededge_server.store.records import RecordTables

__all__ = ["WRITES", "OrderTables", "read_paused", "read_pins", "read_standings"]

KEPT_ORDERS = 10_000
"""Orders that the journal keeps, the newest."""

PAUSED = "paused"
DOOR = ("revoke", "release")
"""The orders that the broker must hear of."""

PINNED = "pinned"
"""The fact with the names of the pinned versions, as JSON."""

FLEET = "SELECT device, report FROM known LEFT JOIN accepted USING (device)"

NEWEST = "SELECT MAX(number) FROM rounds"


class OrderTables(RecordTables, ABC):
    """The tables of orders and standings, read and written."""

    def order(self, order: Any, at: float, heard: Collection[str] = ()) -> Outcome:
        """Write an order down with all that it changes, in one transaction.

        Args:
            order: of the union `Order`.
            at: the time of day.
            heard: devices that the coordinator has heard of, beside those that the journal knows.

        Raises:
            RefusedError: it cannot be done; nothing was written.
        """
        with self._transaction():
            if isinstance(order, DeviceOrder) and not isinstance(order, RevokeOrder):
                self._check_device(order.device, heard)
            outcome: Outcome = WRITES[type(order)](self, order, at)
            if outcome.changed:
                text = msgspec.json.encode(order).decode()
                self._add("orders", None, at, order.name, text)
                (newest,) = self._journal.execute("SELECT MAX(entry) FROM orders").fetchone()
                self._remove("orders", "entry <= ?", newest - KEPT_ORDERS)
        return outcome

    def orders(self) -> list[tuple[float, Any]]:
        """The orders that were given, oldest first, with their times; read as `history` is."""
        with self._reading() as journal:
            self._check_format(journal)
            rows = journal.execute("SELECT at, request FROM orders ORDER BY entry")
            return [(at, json.loads(text)) for at, text in rows]

    def let_in(self) -> list[str]:
        """The devices that were revoked and then released, as far back as the orders go."""
        given = [(one["device"], one["order"]) for _, one in self.orders() if one["order"] in DOOR]
        last, revoked = dict(given), {device for device, order in given if order == DOOR[0]}
        return sorted(device for device in revoked if last[device] == DOOR[1])

    def fleet(self) -> dict[str, Report | None]:
        """The known devices, with each one's last accepted report; read as `history` is."""
        with self._reading() as journal:
            self._check_format(journal)
            rows = journal.execute(FLEET).fetchall()
        return {d: r and msgspec.json.decode(r, type=Report) for d, r in rows}

    def standings(self) -> dict[str, Ordered]:
        """The orders in force for devices, read as `history` is."""
        with self._reading() as journal:
            self._check_format(journal)
            return read_standings(journal)

    def _check_device(self, device: str, heard: Collection[str]) -> None:
        if device in heard:
            return
        rows = self._journal.execute("SELECT device FROM known UNION SELECT device FROM standings")
        known = {name for (name,) in rows}
        if device not in known:
            raise RefusedError(unknown("device", device, {*known, *heard}))

    def _ordered(self, device: str, at: float) -> Ordered:
        """The order in force for a device."""
        found = read_standings(self._journal).get(device, ACTIVE)
        return found if found.at(at) is not Standing.ACTIVE else ACTIVE

    def _stand(self, device: str, wanted: Ordered, at: float) -> bool:
        """Change a device's standing. False if it has it; RefusedError if the table forbids it."""
        now = self._ordered(device, at)
        if now == wanted:
            return False
        same = now.standing is wanted.standing  # a rest with another end
        if not same and wanted.standing not in STANDINGS[now.standing]:
            raise RefusedError(f"{device} is {now.standing.value}: release it first")
        self._put("standings", "device", device, wanted.standing.value, *wanted[1:])
        return True

    def drain(self, order: DrainOrder, at: float) -> Outcome:
        changed = self._stand(order.device, Ordered(Standing.DRAINED), at)
        text = "ends its turn if it has one, and is not asked again until `release`"
        return Outcome(changed, f"{order.device} {text if changed else 'is drained already'}")

    def rest(self, order: RestOrder, at: float) -> Outcome:
        self._stand(order.device, Ordered(Standing.RESTED, at + order.seconds), at)
        return Outcome(True, f"{order.device} is not asked for {order.seconds:.0f} s")

    def quarantine(self, order: QuarantineOrder, at: float) -> Outcome:
        """Also forget that an update was accepted which no version was made of yet."""
        device = order.device
        if not self._shut_out(device, Ordered(Standing.QUARANTINED, reason=order.reason), at):
            return Outcome(False, f"{device} is in quarantine already")
        return Outcome(True, f"{device} is in quarantine: its updates are refused until `release`")

    def revoke(self, order: RevokeOrder, at: float) -> Outcome:
        device = order.device
        if not self._shut_out(device, Ordered(Standing.REVOKED, reason=order.reason), at):
            return Outcome(False, f"{device} is revoked already")
        return Outcome(True, f"{device} is revoked: the coordinator refuses it until `release`")

    def _shut_out(self, device: str, wanted: Ordered, at: float) -> bool:
        """Give a device such a standing; False if it has it."""
        if self._ordered(device, at).standing is wanted.standing:
            return False
        self._stand(device, wanted, at)
        self._remove("accepted", f"device = ? AND number = ({NEWEST})", device)
        return True

    def release(self, order: ReleaseOrder, at: float) -> Outcome:
        device = order.device
        ordered = self._ordered(device, at) != ACTIVE
        held = bool(self._rows("quarantined", "device = ?", device))
        if not ordered and not held:
            return Outcome(False, f"{device} is active already")
        self._remove("standings", "device = ?", device)
        self._remove("quarantined", "device = ?", device)
        return Outcome(True, f"{device} is active: it is asked again")

    def forget(self, order: ForgetOrder, at: float) -> Outcome:
        """Remove every row about a device; the versions that it helped to make stay as they are."""
        device = order.device
        for table in ("known", "accepted", "refused", "quarantined", "standings"):
            self._remove(table, "device = ?", device)
        named = f'%"{device}"%'
        for entry, version, number, text in self._rows("asked", "devices LIKE ?", named):
            asked = json.loads(str(text))
            left = {name: count for name, count in asked.items() if name != device}
            self._remove("asked", "entry = ?", entry)
            if left:
                self._add("asked", entry, version, number, json.dumps(left))
        return Outcome(True, f"{device} is forgotten: if it joins again, it is new")

    def pause(self, order: PauseOrder, at: float) -> Outcome:
        changed = self._note_pause("yes")
        text = "no new round begins until `fededge resume`; an open one ends"
        return Outcome(changed, text if changed else "it is paused already")

    def resume(self, order: ResumeOrder, at: float) -> Outcome:
        changed = self._note_pause("")
        return Outcome(changed, "rounds begin again" if changed else "it is not paused")

    def _note_pause(self, value: str) -> bool:
        rows = self._rows("facts", "name = ?", PAUSED)
        if (rows[0][1] if rows else "") == value:
            return False
        self._put("facts", "name", PAUSED, value)
        return True

    def pin(self, order: PinOrder, at: float) -> Outcome:
        version, pins = order.version, read_pins(self._journal)
        self._check_version(version)
        if version in pins:
            return Outcome(False, f"{version} is pinned already")
        if not self.kept(version):
            raise RefusedError(f"the model of {version} was pruned: it cannot be pinned any more")
        self._put("facts", "name", PINNED, json.dumps(sorted({*pins, version})))
        return Outcome(True, f"{version} is pinned: its model is kept until `unpin`")

    def unpin(self, order: UnpinOrder, at: float) -> Outcome:
        version, pins = order.version, read_pins(self._journal)
        self._check_version(version)
        if version not in pins:
            return Outcome(False, f"{version} is not pinned")
        self._put("facts", "name", PINNED, json.dumps(sorted(pins - {version})))
        return Outcome(True, f"{version} is pruned when it is not among the last ones any more")

    def _check_version(self, version: str) -> None:
        if not self._rows("rounds", "version = ?", version):
            raise RefusedError(
                f"there is no version '{version}'; `fededge versions list` shows them"
            )

    @abstractmethod
    def kept(self, version: str) -> bool:
        """True if a version's files are there."""

    def pinned(self) -> frozenset[str]:
        """The versions that are never pruned, read as `history` is."""
        with self._reading() as journal:
            self._check_format(journal)
            return read_pins(journal)

    @property
    def paused(self) -> bool:
        """True if no round begins, by order of an operator; read as `history` is."""
        with self._reading() as journal:
            self._check_format(journal)
            return read_paused(journal)


def read_standings(journal: sqlite3.Connection) -> dict[str, Ordered]:
    rows = journal.execute("SELECT * FROM standings ORDER BY device")
    return {device: Ordered(Standing(word), until, why) for device, word, until, why in rows}


def read_paused(journal: sqlite3.Connection) -> bool:
    found = journal.execute("SELECT value FROM facts WHERE name = ?", (PAUSED,)).fetchone()
    return bool(found and found[0])


def read_pins(journal: sqlite3.Connection) -> frozenset[str]:
    found = journal.execute("SELECT value FROM facts WHERE name = ?", (PINNED,)).fetchone()
    return frozenset(json.loads(found[0])) if found else frozenset()


WRITES: dict[type, Callable[[OrderTables, Any, float], Outcome]] = {
    DrainOrder: OrderTables.drain,
    RestOrder: OrderTables.rest,
    QuarantineOrder: OrderTables.quarantine,
    ReleaseOrder: OrderTables.release,
    RevokeOrder: OrderTables.revoke,
    ForgetOrder: OrderTables.forget,
    PauseOrder: OrderTables.pause,
    ResumeOrder: OrderTables.resume,
    ApplyOrder: OrderTables.apply,
    PinOrder: OrderTables.pin,
    UnpinOrder: OrderTables.unpin,
}
"""Writes each order down, and says what came of it."""
