"""The coordinator's journal: SQLite in WAL mode with full sync, sealed against silent changes.

One transaction is one step on disk. At the start the journal is read as it is, without changing
anything, and refused if a row is not what was written, or if entries are missing. What the rows
say is in `tables`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from fededge.errors import StoreError
from fededge.storage.files import disk_error
from fededge_server.store import migration
from fededge_server.store.schema import FORMAT, TABLES, format_of
from fededge_server.store.seal import Mark, Marks, Row, Seal, ahead_of_marks

__all__ = ["Connect", "Journal"]

log = logging.getLogger("coordinator")

SQLITE_HEADER = 100
"""Bytes that every database has."""

DAMAGED = ("no such", "unsupported")
"""Errors that SQLite counts among the operating system's begin so."""

SETTINGS = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
"""


Connect = Callable[[Path], sqlite3.Connection]
"""Opens the database of a journal."""


class Journal:
    """The constructor only stores; `open_journal` and `close_journal` do."""

    def __init__(self, folder: Path, connect: Connect = sqlite3.connect) -> None:
        self.folder = folder
        self.connect = connect
        self._connection: sqlite3.Connection | None = None
        self.path = folder / "journal.sqlite"
        self._marks = Marks(folder)
        self._seal = Seal()

    def open_journal(self) -> None:
        """Check the journal and go on with it, or begin one where there has been none."""
        begun = self._check()
        try:
            self._connection = self.connect(self.path)
        except sqlite3.Error as error:
            raise self._store_error(error) from None
        try:
            self._journal.executescript(SETTINGS)
            if not begun:
                self._make_tables()
            elif format_of(self._journal) < FORMAT:
                self._migrate()
            self._marks.write(self._standing(self._journal))
            self._marks.sync()
        except (sqlite3.Error, StoreError) as error:
            self.close_journal()
            raise self._store_error(error) from None

    def close_journal(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _journal(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path}: the journal is not open")
        return self._connection

    def _make_tables(self) -> None:
        """All at once: a crash leaves a whole journal or an empty one."""
        tables = "".join(f"CREATE TABLE {name} ({of});\n" for name, of in TABLES.items())
        seal = "CREATE TABLE seal (one INTEGER PRIMARY KEY, entries INTEGER, head TEXT);"
        self._journal.executescript(f"BEGIN; PRAGMA user_version = {FORMAT};{tables}{seal}")
        self._seal = self._sum(self._journal)
        self._journal.execute("INSERT INTO seal VALUES (1, ?, ?)", (0, self._seal.head))
        self._journal.commit()

    def _migrate(self) -> None:
        """Bring an older journal to this format, in one transaction; a copy of it is kept."""
        found = format_of(self._journal)
        copy = migration.keep_copy(self._journal, self.path, self._marks.paths)
        with migration.steps(self._journal, found):
            self._seal = self._sum(self._journal)._replace(entries=self._seal.entries)
            self._write_seal()
        log.info(
            "%s: migrated from format %d to %d; %s holds it as it was",
            *(self.path, found, FORMAT, copy),
            extra={"event": "journal-migrated"},
        )

    # Checks at the start

    def _check(self) -> bool:
        """True if there is a journal. A StoreError if one is lost, or is not as written."""
        self._marks.read()
        # SQLite itself would remove the WAL of a file that is empty.
        if self.path.exists() and self.path.stat().st_size >= SQLITE_HEADER:
            with self._reading() as journal:
                if _has_tables(journal):
                    migration.check_readable(self.path, format_of(journal))
                    self._check_rows(journal)
                    self._check_marks(journal)
                    return True
        for path in self._marks.paths:
            if path.exists():
                raise self._lost(f"missing or empty, but {path.name} tells that a run was begun")
        return False

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that changes neither the journal nor its WAL."""
        address = f"{self.path.absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(address, uri=True)) as journal:
                journal.text_factory = _text
                yield journal
        except (sqlite3.Error, UnicodeError) as error:
            raise self._store_error(error) from None

    def _check_format(self, journal: sqlite3.Connection) -> None:
        """Refuse a journal that can only be read after a migration, or by a newer version."""
        if not _has_tables(journal):
            raise StoreError(f"{self.path}: it is empty: no run has begun yet")
        migration.check_readable(self.path, format_of(journal))
        if format_of(journal) < FORMAT:
            raise StoreError(
                f"{self.path}: this journal has format {format_of(journal)}, and is read as format "
                f"{FORMAT}; start the coordinator, which migrates it"
            )

    def _check_rows(self, journal: sqlite3.Connection) -> None:
        (whole,) = journal.execute("PRAGMA integrity_check(1)").fetchone()
        if whole != "ok":
            raise self._lost(f"damaged ({whole})")
        rows = journal.execute("SELECT entries, head FROM seal").fetchall()
        self._seal = self._sum(journal)
        if len(rows) == 1 and isinstance(rows[0][0], int):
            self._seal = self._seal._replace(entries=rows[0][0])
        if rows != [(self._seal.entries, self._seal.head)]:
            raise self._lost("damaged, an entry is not what was written")

    def _sum(self, journal: sqlite3.Connection) -> Seal:
        """The seal of what the journal holds; its tables count as rows too."""
        seal = Seal().with_rows("", journal.execute("SELECT type, name, sql FROM sqlite_master"))
        for table in migration.sealed_tables(journal):
            seal = seal.with_rows(table, journal.execute(f'SELECT * FROM "{table}"'))
        return seal

    def _check_marks(self, journal: sqlite3.Connection) -> None:
        """Refuse a journal that ends before one of its marks, or is not theirs."""
        now, marks = self._standing(journal), self._marks.found
        if not marks and now.entries:
            raise StoreError(
                f"{self._marks.path}: missing or damaged, and so is {self._marks.latest.name}: "
                f"nothing tells whether {self.path.name}, with {now.rounds} rounds, is the newest; "
                + self._remedy
            )
        for path in self._marks.paths:
            if path in marks:
                self._check_mark(path.name, marks[path], now, journal)
            elif now.entries:
                log.warning("%s: missing or damaged; it is written anew", path)

    def _check_mark(self, name: str, mark: Mark, now: Mark, journal: sqlite3.Connection) -> None:
        if now.entries < mark.entries:
            raise self._lost(
                f"its last {mark.entries - now.entries} entries are missing: it ends after round "
                f"{now.rounds}, {name} tells of round {mark.rounds}; it or {self.path.name}-wal "
                "was removed, shortened or damaged"
            )
        known = "SELECT count(*) FROM rounds WHERE version = ?"
        theirs = mark.run in ("", now.run) and (
            not mark.version or journal.execute(known, (mark.version,)).fetchone() == (1,)
        )
        if not theirs or (now.entries == mark.entries and now.head != mark.head):
            raise self._lost(f"it is not the journal that {name} tells of")

    def _lost(self, what: str) -> StoreError:
        one_line = " ".join(what.split())  # SQLite quotes tables, and says more than one thing
        return StoreError(f"{self.path}: {one_line}; {self._remedy}")

    @property
    def _remedy(self) -> str:
        return f"restore a backup of the whole folder, or remove {self.folder} to begin a new run"

    def _standing(self, journal: sqlite3.Connection) -> Mark:
        """The mark of what is committed."""
        run = journal.execute("SELECT value FROM facts WHERE name = 'run'").fetchone()
        newest = "SELECT number, version, sha256 FROM rounds ORDER BY number DESC LIMIT 1"
        number, version, sha256 = journal.execute(newest).fetchone() or (0, "", "")
        entries, head = self._seal.entries, self._seal.head
        return Mark("" if run is None else run[0], number, version, sha256, entries, head)

    # Copies

    def snapshot(self, target: Path) -> None:
        """Copy the journal as one transaction sees it, also while it is written; no marks."""
        with self._reading() as journal, contextlib.closing(sqlite3.connect(target)) as copy:
            journal.backup(copy)

    def mark_anew(self) -> None:
        """Check a copy of a journal, and write its marks."""
        with self._reading() as journal:
            self._check_format(journal)
            self._check_rows(journal)
            self._marks.write(self._standing(journal))
            self._marks.sync()

    # Changes

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, sealed, and on disk when it ends."""
        before, done = self._seal, False
        try:
            with self._journal:
                yield self._journal
                if self._journal.in_transaction:
                    self._write_seal()
            done = True
        except sqlite3.Error as error:
            raise self._store_error(error) from None
        finally:
            self._seal = self._seal if done else before
        if self._seal != before:
            self._mark()

    def _write_seal(self) -> None:
        self._seal = self._seal._replace(entries=self._seal.entries + 1)
        sealed = (self._seal.entries, self._seal.head)
        self._journal.execute("UPDATE seal SET entries = ?, head = ?", sealed)

    def _mark(self) -> None:
        """Let the latest mark follow."""
        with ahead_of_marks():
            self._marks.write(self._standing(self._journal))

    def sync_marks(self) -> None:
        """Make the mark of the newest version durable; from time to time, no round waits for it."""
        with ahead_of_marks():
            self._marks.sync()

    def _add(self, table: str, *row: object) -> None:
        """Write a row; as it is read back it counts, for SQLite may keep 1 as 1.0."""
        places = ", ".join("?" * len(row))
        added = self._journal.execute(f"INSERT INTO {table} VALUES ({places})", row)
        self._seal = self._seal.with_rows(table, self._rows(table, "rowid = ?", added.lastrowid))

    def _remove(self, table: str, condition: str, *values: object) -> None:
        self._seal = self._seal.without_rows(table, self._rows(table, condition, *values))
        self._journal.execute(f"DELETE FROM {table} WHERE {condition}", values)

    def _put(self, table: str, key: str, *row: object) -> None:
        """Write a row in place of the one with the same key, which is its first value."""
        self._remove(table, f"{key} = ?", row[0])
        self._add(table, *row)

    def _rows(self, table: str, condition: str, *values: object) -> list[Row]:
        return self._journal.execute(f"SELECT * FROM {table} WHERE {condition}", values).fetchall()

    def _store_error(self, error: Exception) -> StoreError:
        """One sentence for what SQLite or the operating system said."""
        if isinstance(error, StoreError):
            return error
        if "is full" in str(error):
            return disk_error(self.path, OSError(errno.ENOSPC, str(error)))
        if isinstance(error, sqlite3.OperationalError) and not str(error).startswith(DAMAGED):
            return StoreError(f"{self.path}: {error}")
        return self._lost(f"unreadable ({error})")


def _has_tables(journal: sqlite3.Connection) -> bool:
    return bool(journal.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,))


def _text(data: bytes) -> str:
    """A text that was damaged must differ from what was written, not end the reading."""
    return data.decode(errors="surrogateescape")
