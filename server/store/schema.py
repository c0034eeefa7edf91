"""The journal's schema: its format, its tables, and the steps that lead to it from older formats.

A change of the tables raises `FORMAT` by one and adds a step from the format before. A step never
changes afterwards: it says what its format was, not what `TABLES` says today.
"""

from __future__ import annotations

import sqlite3

__all__ = ["FORMAT", "STEPS", "TABLES", "format_of"]

FORMAT = 6
"""The journal's `user_version`. The first format left it at 0."""

TABLES = {
    "facts": "name TEXT PRIMARY KEY, value TEXT NOT NULL",
    "rounds": """
        number INTEGER PRIMARY KEY,
        version TEXT NOT NULL,
        sha256 TEXT NOT NULL,
        accuracy REAL,
        seconds REAL,
        reports TEXT NOT NULL,
        state_sha256 TEXT NOT NULL,
        restored TEXT NOT NULL,
        date REAL,
        participants INTEGER NOT NULL DEFAULT 0
    """,
    "asked": """
        entry INTEGER PRIMARY KEY,
        version TEXT NOT NULL,
        number INTEGER NOT NULL,
        devices TEXT NOT NULL
    """,
    "known": "device TEXT PRIMARY KEY",
    "accepted": """
        device TEXT PRIMARY KEY,
        version TEXT NOT NULL,
        report TEXT NOT NULL,
        number INTEGER NOT NULL,
        norm REAL NOT NULL
    """,
    "refused": """
        entry INTEGER PRIMARY KEY,
        number INTEGER NOT NULL,
        device TEXT NOT NULL,
        version TEXT NOT NULL,
        reason TEXT NOT NULL
    """,
    "quarantined": "device TEXT PRIMARY KEY",
    "rollout": "one INTEGER PRIMARY KEY, plan TEXT NOT NULL",
    "changes": """
        entry INTEGER PRIMARY KEY,
        number INTEGER NOT NULL,
        date REAL NOT NULL,
        kind TEXT NOT NULL,
        what TEXT NOT NULL
    """,
    "orders": """
        entry INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        name TEXT NOT NULL,
        request TEXT NOT NULL
    """,
    "standings": """
        device TEXT PRIMARY KEY,
        standing TEXT NOT NULL,
        until REAL NOT NULL,
        reason TEXT NOT NULL
    """,
    "settings": "role TEXT PRIMARY KEY, text TEXT NOT NULL",
}

ASKED_BY_ENTRY = """
CREATE TABLE asked_by_entry (
    entry INTEGER PRIMARY KEY, version TEXT NOT NULL, number INTEGER NOT NULL, devices TEXT NOT NULL
);
INSERT INTO asked_by_entry SELECT NULL, version, number, devices FROM asked ORDER BY number;
DROP TABLE asked;
ALTER TABLE asked_by_entry RENAME TO asked;
"""

DATES_AND_CHANGES = """
ALTER TABLE rounds ADD COLUMN date REAL;
ALTER TABLE rounds ADD COLUMN participants INTEGER NOT NULL DEFAULT 0;
UPDATE rounds SET participants = (SELECT count(*) FROM json_each(reports));
CREATE TABLE changes (
    entry INTEGER PRIMARY KEY, number INTEGER NOT NULL, date REAL NOT NULL, kind TEXT NOT NULL,
    what TEXT NOT NULL
);
"""

ORDERS = """
CREATE TABLE orders (
    entry INTEGER PRIMARY KEY, at REAL NOT NULL, name TEXT NOT NULL, request TEXT NOT NULL
);
CREATE TABLE standings (
    device TEXT PRIMARY KEY, standing TEXT NOT NULL, until REAL NOT NULL, reason TEXT NOT NULL
);
"""

SETTINGS = "CREATE TABLE settings (role TEXT PRIMARY KEY, text TEXT NOT NULL);\n"

STEPS: dict[int, str] = {
    2: ASKED_BY_ENTRY,
    3: DATES_AND_CHANGES,
    4: ORDERS,
    5: SETTINGS,
}
"""For each older format, the statements that lead to the next one."""


def format_of(journal: sqlite3.Connection) -> int:
    (found,) = journal.execute("PRAGMA user_version").fetchone()
    return int(found) or 1
