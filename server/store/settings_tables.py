"""The run's settings in the journal: those in force, those ordered, and those of the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from enum import Enum

import msgspec

from fededge.errors import StoreError
from fededge_server.machine.fleet.orders import ApplyOrder, Outcome
from fededge_server.machine.settings import Settings
from fededge_server.store.journal import Journal
from fededge_server.store.rows import NewSettings

__all__ = ["Role", "SettingsTables"]

OLD_FACTS = "name IN ('method', 'encoding', 'transfer.chunk_bytes') OR {}".format(
    " OR ".join(f"name LIKE '{begin}%'" for begin in ("training.", "robust.", "file of "))
)
"""Facts of a run that could not change while earlier formats of the journal were written."""

RENEWED = "renewed"
"""The fact that says since how many rounds the method's own state has grown."""


class Role(Enum):
    """The part that settings play in a run."""

    IN_FORCE = "in force"
    ORDERED = "ordered"
    FILE = "file"


class SettingsTables(Journal):
    """The table of settings, read and written."""

    def settings(self) -> dict[Role, Settings]:
        """The run's settings; read without taking the folder."""
        with self._reading() as journal:
            self._check_format(journal)
            return _settings(journal)

    def known_fact(self, name: str) -> str:
        """A fact of the run, read without taking the folder; empty if there is none."""
        with self._reading() as journal:
            self._check_format(journal)
            row = journal.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return "" if row is None else str(row[0])

    def begun_with(self) -> dict[str, str]:
        """The facts that earlier formats had of the settings; empty once they are in the table."""
        with self._transaction() as journal:
            rows = journal.execute(f"SELECT name, value FROM facts WHERE {OLD_FACTS}")
            return dict(rows.fetchall())

    def put_settings(
        self, settings: Mapping[Role, Settings | None], date: float, number: int, what: str = ""
    ) -> None:
        """Write down the settings of a start; `what` has changed with it, if anything has."""
        with self._transaction():
            self._remove("facts", OLD_FACTS)
            for role, one in settings.items():
                self._put_role(role, one)
            if what:
                self._add("changes", None, number, date, "settings", what)

    def put_in_force(self, new: NewSettings, date: float, number: int) -> None:
        """Put ordered settings in force, from the version after so many rounds on."""
        with self._transaction():
            self._enter_settings(new, date, number)

    def _enter_settings(self, new: NewSettings, date: float, number: int) -> None:
        self._put_role(Role.IN_FORCE, new.settings)
        if _settings(self._journal).get(Role.ORDERED) == new.settings:
            self._put_role(Role.ORDERED, None)
        if new.what:
            self._add("changes", None, number, date, "settings", new.what)
        if new.renewed:
            self._put("facts", "name", RENEWED, str(number))

    def _put_role(self, role: Role, settings: Settings | None) -> None:
        self._remove("settings", "role = ?", role.value)
        if settings is not None:
            self._add("settings", role.value, msgspec.json.encode(settings).decode())

    def apply(self, order: ApplyOrder, at: float) -> Outcome:
        """Write down the settings that the next version boundary puts in force."""
        found = _settings(self._journal)
        wanted = found.get(Role.ORDERED, found.get(Role.IN_FORCE))
        if wanted == order.settings:
            return Outcome(False, "these settings are ordered already, or in force")
        if found.get(Role.IN_FORCE) == order.settings:
            self._put_role(Role.ORDERED, None)
            return Outcome(True, "the settings stay as they are: the change that waited is dropped")
        self._put_role(Role.ORDERED, order.settings)
        return Outcome(True, "the settings are in the journal: the next round that begins has them")

    @property
    def renewed(self) -> int:
        """The rounds done when the method's own state began anew; 0: at the run's beginning."""
        with self._transaction() as journal:
            row = journal.execute("SELECT value FROM facts WHERE name = ?", (RENEWED,)).fetchone()
        return 0 if row is None else int(row[0])


def _settings(journal: sqlite3.Connection) -> dict[Role, Settings]:
    rows = journal.execute("SELECT role, text FROM settings").fetchall()
    try:
        return {Role(role): msgspec.json.decode(text, type=Settings) for role, text in rows}
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreError(
            f"the journal has settings that this version of FedEdge does not know ({error}); "
            "upgrade FedEdge on this machine"
        ) from None
