"""The journal's tables: the run's facts, its versions, who was asked, accepted and refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec

from fededge.errors import ConfigError, StoreError
from fededge.wire.messages import Report
from fededge_server.machine.events import Refuse
from fededge_server.machine.facts import Recalled
from fededge_server.machine.rounds.rollout import Plan
from fededge_server.store.rows import (
    Change,
    CheckedUpdate,
    NewSettings,
    Progress,
    accuracies_in,
    asked_in,
    score_of,
)
from fededge_server.store.settings_tables import SettingsTables

__all__ = ["AWAKE", "Change", "CheckedUpdate", "JournalTables", "Progress"]

ASKED_VERSIONS = 1000
"""Number of versions for which the journal keeps who was asked."""

KEPT_REPORTS = 1000
"""Number of versions for which the journal keeps each participant's report, and each refusal."""

REPORTS = 5
"""The column of `rounds` with the reports."""

CHANGES = "SELECT number, date, kind, what FROM changes ORDER BY entry"
COLUMNS = "number, version, sha256, accuracy, restored, date"
VERSIONS = f"SELECT {COLUMNS} FROM rounds ORDER BY number"

RECENT = """
SELECT version, number FROM rounds
WHERE number >= (SELECT MAX(number) FROM rounds WHERE restored != '' OR number = 0)
"""
"""Versions of which late updates may be taken: not those that the run went back from."""

AWAKE = "awake"
"""The fact that says in which round the last rest of a flat model ended."""

SCORES = """
SELECT accuracy, reports FROM rounds
WHERE number > MAX(?, (SELECT MAX(number) FROM rounds WHERE restored != '' OR number = 0))
ORDER BY number
"""

ASKED = (
    "SELECT devices FROM asked WHERE version = (SELECT version FROM rounds ORDER BY number DESC)"
)


class JournalTables(SettingsTables):
    """The journal's tables, read and written. `_pruned`: the round of the last pruning."""

    _pruned: int | None = None

    # The run

    def agree(self, facts: Mapping[str, str]) -> None:
        """Write down what the run is, or check that it still is: a difference is refused."""
        with self._transaction() as journal:
            known = dict(journal.execute("SELECT name, value FROM facts"))
            other = {name: now for name, now in facts.items() if known.get(name, now) != now}
            if other.keys() & {"model", "labels"}:
                other.pop("layout", None)  # it follows from them, and tells nobody anything
            if other:
                begun = ", ".join(f"{name} = {known[name]}" for name in other)
                asked = ", ".join(f"{name} = {now}" for name, now in other.items())
                raise ConfigError(
                    f"{self.folder}: this run was begun with {begun}, the configuration now says "
                    f"{asked}; put it back, or choose another state folder"
                )
            for name in facts.keys() - known.keys():
                self._add("facts", name, facts[name])

    def fact(self, name: str) -> str | None:
        with self._transaction() as journal:
            row = journal.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def note(self, name: str, value: str) -> None:
        """Write down a fact that may change."""
        with self._transaction():
            self._put("facts", "name", name, value)

    def progress(self) -> Progress | None:
        with self._transaction() as journal:
            row = journal.execute(f"{VERSIONS} DESC LIMIT 1").fetchone()
        return None if row is None else Progress(*row)

    def history(self) -> list[Progress]:
        """Every version of the run, oldest first; read without taking the folder."""
        with self._reading() as journal:
            self._check_format(journal)
            return [Progress(*row) for row in journal.execute(VERSIONS)]

    def roster(self) -> tuple[frozenset[str], frozenset[str]]:
        """The devices asked for the newest version, and those in quarantine, as `history` reads."""
        with self._reading() as journal:
            self._check_format(journal)
            asked = [device for (row,) in journal.execute(ASKED) for device in json.loads(row)]
            out = (device for (device,) in journal.execute("SELECT device FROM quarantined"))
            return frozenset(asked), frozenset(out)

    # Changes by an operator

    def changes(self) -> list[Change]:
        """Every change of the run, oldest first; read without taking the folder."""
        with self._reading() as journal:
            self._check_format(journal)
            return [Change(*row) for row in journal.execute(CHANGES)]

    # Versions

    def enter(
        self,
        progress: Progress,
        state_sha256: str,
        reports: Mapping[str, Mapping[str, float]],
        seconds: float | None,
        settings: NewSettings | None = None,
        begun_with: str = "",
    ) -> None:
        """Write down a new version, whose files are on disk.

        Args:
            settings: begin with it.
            begun_with: the weights of a run's first version, if they are not those of its seed.
        """
        row = (
            progress.rounds_done,
            progress.version,
            progress.sha256,
            progress.accuracy,
            seconds,
            json.dumps(reports),
            state_sha256,
            progress.restored,
            progress.date,
            len(reports),
        )
        with self._transaction():
            self._add("rounds", *row)
            if settings is not None:
                self._enter_settings(settings, progress.date or 0.0, progress.rounds_done)
            if progress.restored and not (settings and settings.what):
                back = (progress.date or 0.0, "rollback", f"back to {progress.restored}")
                self._add("changes", None, progress.rounds_done, *back)
            if begun_with:
                begun = (progress.date or 0.0, "warm start", begun_with)
                self._add("changes", None, progress.rounds_done, *begun)
            self._compact(progress.rounds_done - KEPT_REPORTS)

    def _compact(self, number: int) -> None:
        """Forget the reports of an old version; how many there were is kept."""
        for row in self._rows("rounds", "number = ? AND reports != '{}'", number):
            self._put("rounds", "number", *row[:REPORTS], "{}", *row[REPORTS + 1 :])
        self._remove("refused", "number <= ?", number)

    def hashes(self, version: str) -> tuple[str, str]:
        """The SHA-256 of a version's model, and of the method's state."""
        with self._transaction() as journal:
            row = journal.execute(
                "SELECT sha256, state_sha256 FROM rounds WHERE version = ?", (version,)
            ).fetchone()
        if row is None:
            raise StoreError(f"{self.path}: there is no version {version}")
        return str(row[0]), str(row[1])

    def last_versions(self, count: int) -> list[str]:
        with self._transaction() as journal:
            rows = journal.execute(f"{VERSIONS} DESC LIMIT ?", (count,)).fetchall()
        return [version for _, version, *_ in rows]

    def scores(self) -> list[tuple[str, float | None, dict[str, float]]]:
        """Every version with its accuracy, and those of the devices that trained from it."""
        with self._transaction() as journal:
            rows = journal.execute(
                "SELECT version, accuracy, LEAD(reports) OVER (ORDER BY number) FROM rounds"
            ).fetchall()
        return [(version, own, accuracies_in(told)) for version, own, told in rows]

    # The round that is open

    def remember(
        self, number: int, version: str, asked: Mapping[str, int], known: Iterable[str]
    ) -> None:
        """Write down whom a round asks, with the examples that each announced, and who is known.

        Both are added to what was written before. A device that joins costs one short row, however
        many were asked.
        """
        with self._transaction():
            if asked:
                self._add("asked", None, version, number, json.dumps(dict(asked)))
            if number != self._pruned:
                self._remove("asked", "number <= ?", number - ASKED_VERSIONS)
            for device in known:
                if not self._rows("known", "device = ?", device):
                    self._add("known", device)
        self._pruned = number

    def accept(self, *updates: CheckedUpdate) -> None:
        """Write down that these updates, which are on disk, are taken: all in one transaction."""
        with self._transaction():
            for device, report, number, norm in updates:
                text = msgspec.json.encode(report).decode()
                self._put("accepted", "device", device, report.version, text, number, norm)
                self._remove("quarantined", "device = ?", device)

    def unaccept(self, device: str) -> None:
        """Forget the last accepted update of a device."""
        with self._transaction():
            self._remove("accepted", "device = ?", device)

    def refuse(self, number: int, refused: Refuse) -> None:
        """Write down why an update was refused, and whether its device sits out from now on.

        It may have been accepted before: a merge can find what no check of one update does.
        """
        update = (refused.device, refused.version)
        with self._transaction():
            self._remove("accepted", "device = ? AND version = ?", *update)
            self._add("refused", None, number, *update, refused.reason)
            if refused.quarantined:
                self._put("quarantined", "device", refused.device)

    def recall(self) -> Recalled:
        """Read what an earlier process knew of the open round and of its devices."""
        progress = self.progress()
        done = 0 if progress is None else progress.rounds_done
        with self._transaction() as journal:
            asked = journal.execute("SELECT version, devices FROM asked ORDER BY entry").fetchall()
            known = [device for (device,) in journal.execute("SELECT device FROM known")]
            taken = journal.execute("SELECT device, report, number, norm FROM accepted").fetchall()
            recent = dict(journal.execute(RECENT))
            out = [device for (device,) in journal.execute("SELECT device FROM quarantined")]
        scores = self._scores_since(int(self.fact(AWAKE) or 0))
        try:
            return Recalled(
                asked=asked_in(asked),
                known=frozenset(known),
                accepted={d: msgspec.json.decode(r, type=Report) for d, r, *_ in taken},
                norms={device: norm for device, _, _, norm in taken},
                stored=frozenset(d for d, _, round_, _ in taken if round_ == done),
                recent={version: n for version, n in recent.items() if n < done},
                quarantined=frozenset(out),
                scores=scores,
            )
        except msgspec.DecodeError as error:
            raise self._lost(f"damaged ({error})") from None

    def _scores_since(self, number: int) -> tuple[float | None, ...]:
        """The scores of the versions since a rest ended, or the run went back."""
        with self._transaction() as journal:
            rows = journal.execute(SCORES, (number,)).fetchall()
        return tuple(score_of(own, json.loads(told)) for own, told in rows)

    # The rollout of personal models

    def keep_plan(self, plan: Plan) -> None:
        """Write down where the rollout stands: before anybody is told."""
        with self._transaction():
            self._put("rollout", "one", 1, msgspec.json.encode(plan).decode())

    def plan(self) -> Plan | None:
        with self._transaction() as journal:
            row = journal.execute("SELECT plan FROM rollout").fetchone()
        try:
            return None if row is None else msgspec.json.decode(row[0], type=Plan)
        except msgspec.DecodeError as error:
            raise self._lost(f"damaged ({error})") from None
