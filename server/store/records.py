"""The journal's record of every round, for whoever looks back: read without taking the folder."""

from __future__ import annotations

import json
from typing import NamedTuple

from fededge_server.store.tables import JournalTables

__all__ = ["RecordTables", "RoundRecord"]

RECORDS = """
SELECT number, version, accuracy, restored, seconds, date, participants, reports
FROM rounds ORDER BY number
"""


class RoundRecord(NamedTuple):
    """A version, and the round that made it.

    `reports`: the scalars of each device, for the last rounds; of earlier ones only their number
    is kept, in `participants`.
    """

    rounds_done: int
    version: str
    accuracy: float | None
    restored: str
    seconds: float | None
    date: float | None
    participants: int
    reports: dict[str, dict[str, float]]


class RecordTables(JournalTables):
    """The table of rounds, read as a history."""

    def run(self) -> str:
        """The id of the run, read as `history` is."""
        with self._reading() as journal:
            self._check_format(journal)
            row = journal.execute("SELECT value FROM facts WHERE name = 'run'").fetchone()
        return "" if row is None else str(row[0])

    def rounds(self) -> list[RoundRecord]:
        """Every version with the round that made it, oldest first, read as `history` is."""
        with self._reading() as journal:
            self._check_format(journal)
            rows = journal.execute(RECORDS).fetchall()
        return [RoundRecord._make((*row[:7], json.loads(row[7]))) for row in rows]
