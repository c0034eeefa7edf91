"""What the coordinator keeps on disk: a journal in SQLite, model files, and the spool of updates.

The journal is in WAL mode with full sync; files are written and synced before the entry that names
them. The entries of a round: whom it asks, each update as it is accepted, and the new version.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fededge.errors import ConfigError, StoreError, WireError
from fededge.files import (
    disk_error,
    fsync_folder,
    lock_folder,
    make_folder,
    replacing,
    stream_sha256,
)
from fededge.flat import Layout, Vector, blocks
from fededge.wire import container, pieces, tensors
from fededge.wire.messages import Manifest, Report
from fededge_server.events import Memory, Refuse
from fededge_server.rollout import Plan
from fededge_server.spool import Spool

__all__ = ["Progress", "Store"]

SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (
    number INTEGER PRIMARY KEY,
    version TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    accuracy REAL,
    seconds REAL,
    reports TEXT NOT NULL,
    state_sha256 TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS asked (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    number INTEGER NOT NULL,
    invited TEXT NOT NULL,
    known TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS accepted (
    device TEXT PRIMARY KEY,
    version TEXT NOT NULL,
    report TEXT NOT NULL,
    number INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS refused (
    number INTEGER NOT NULL,
    device TEXT NOT NULL,
    version TEXT NOT NULL,
    reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS quarantined (device TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS rollout (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    plan TEXT NOT NULL
);
"""
VERSIONS = "SELECT number, version, sha256, accuracy FROM rounds ORDER BY number"


@dataclass(frozen=True)
class Progress:
    """Where a run stands: how many rounds are done, and the version they led to."""

    rounds_done: int
    version: str
    sha256: str
    accuracy: float | None


class Store(Spool):
    """The coordinator's folder. The constructor only stores; `open` and `close` do."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "spool")
        self.folder = folder
        self.models = folder / "models"
        self.path = folder / "journal.sqlite"
        self._checked: set[str] = set()

    def open(self) -> None:
        """Take the folder for this process alone, and make what is missing in it."""
        self._take_folder()
        try:
            self._journal = sqlite3.connect(self.path)
        except sqlite3.Error as error:
            self._lock.close()
            raise StoreError(f"{self.path}: {error}") from None
        try:
            with self._transaction() as journal:
                journal.executescript(SCHEMA)
            self._sweep_spool()
        except StoreError:
            self.close()
            raise

    def _take_folder(self) -> None:
        try:
            make_folder(self.folder)
            self.models.mkdir(exist_ok=True)
            self.spool.mkdir(exist_ok=True)
            fsync_folder(self.folder)
        except OSError as error:
            raise disk_error(self.folder, error) from None
        self._lock = lock_folder(self.folder, "another coordinator")

    def close(self) -> None:
        self._journal.close()
        self._lock.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, on disk when it ends."""
        try:
            with self._journal:
                yield self._journal
        except sqlite3.Error as error:
            if "is full" in str(error):
                raise disk_error(self.path, OSError(errno.ENOSPC, str(error))) from None
            raise StoreError(f"{self.path}: {error}") from None

    # The run

    def agree(self, facts: Mapping[str, str]) -> None:
        """Write down what the run is, or check that it still is: a difference is refused."""
        with self._transaction() as journal:
            known = dict(journal.execute("SELECT name, value FROM facts"))
            journal.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", facts.items())
            other = {name: now for name, now in facts.items() if known.get(name, now) != now}
            if other:
                begun = ", ".join(f"{name} = {known[name]}" for name in other)
                asked = ", ".join(f"{name} = {now}" for name, now in other.items())
                raise ConfigError(
                    f"{self.folder}: this run was begun with {begun}, the configuration now says "
                    f"{asked}; put it back, or choose another state folder"
                )

    def fact(self, name: str) -> str | None:
        with self._transaction() as journal:
            row = journal.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def note(self, name: str, value: str) -> None:
        """Write down a fact that may change."""
        with self._transaction() as journal:
            journal.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def progress(self) -> Progress | None:
        with self._transaction() as journal:
            row = journal.execute(f"{VERSIONS} DESC LIMIT 1").fetchone()
        return None if row is None else Progress(*row)

    def history(self) -> list[Progress]:
        """Every version of the run, oldest first; read without taking the folder."""
        address = f"{self.path.absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(address, uri=True)) as journal:
                rows = journal.execute(VERSIONS).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from None
        return [Progress(*row) for row in rows]

    # Versions

    def advance(
        self,
        progress: Progress,
        layout: Layout,
        model: Vector,
        state: Mapping[str, Vector],
        reports: Mapping[str, Mapping[str, float]],
        seconds: float | None,
    ) -> None:
        """Make a new version the current one: its files first, then the entry that names them."""
        with replacing(self.model(progress.version)) as file:
            tensors.write(file, layout, {"model": model})
        with replacing(self._state(progress.version)) as remembered:
            container.write(remembered, {name: container.plain(v) for name, v in state.items()})
        row = (
            progress.rounds_done,
            progress.version,
            progress.sha256,
            progress.accuracy,
            seconds,
            json.dumps(reports),
            remembered.sha256,
        )
        with self._transaction() as journal:
            journal.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def load(self, version: str, layout: Layout) -> tuple[Vector, dict[str, Vector]]:
        """The model of a version, and what the method's coordinator half remembers."""
        sha256, state_sha256 = self._hashes(version)
        model_path, state_path = self.model(version), self._state(version)
        try:
            with model_path.open("rb") as file:
                model = tensors.decode(layout, file)["model"]
            with state_path.open("rb") as file:
                found = layout.sha256(model), stream_sha256(file)
                state = {n: container.array_of(p) for n, p in container.read(file).items()}
        except (OSError, WireError) as error:
            raise StoreError(f"{model_path}: unreadable ({error}); restore a backup") from None
        for path, expected, actual in zip(
            (model_path, state_path), (sha256, state_sha256), found, strict=True
        ):
            if actual != expected:
                raise _damaged(path)
        return model, state

    def part(self, version: str, layout: Layout, span: slice) -> Vector:
        """Some numbers of a version's model; the first time all of it is checked."""
        path = self.model(version)
        try:
            with path.open("rb") as file:
                if version not in self._checked:
                    spans = blocks(0, layout.size)
                    parts = (tensors.decode_part(layout, file, s, "float32") for s in spans)
                    if layout.sha256_of(parts) != self._hashes(version)[0]:
                        raise _damaged(path)
                    self._checked.add(version)
                return tensors.decode_part(layout, file, span, "float32")
        except (OSError, WireError) as error:
            raise StoreError(f"{path}: unreadable ({error}); restore a backup") from None

    def _hashes(self, version: str) -> tuple[str, str]:
        """Of a version's model, and of what the method remembers."""
        with self._transaction() as journal:
            row = journal.execute(
                "SELECT sha256, state_sha256 FROM rounds WHERE version = ?", (version,)
            ).fetchone()
        if row is None:
            raise StoreError(f"{self.path}: there is no version {version}")
        return str(row[0]), str(row[1])

    # The round that is open

    def remember(self, number: int, invited: Iterable[str], known: Iterable[str]) -> None:
        """Write down whom a round asks, and who is known."""
        row = (number, json.dumps([*invited]), json.dumps([*known]))
        with self._transaction() as journal:
            journal.execute("INSERT OR REPLACE INTO asked VALUES (1, ?, ?, ?)", row)

    def accept(self, device: str, report: Report, number: int) -> None:
        """Write down that an update, which `check` has made durable, is taken in this round."""
        row = (device, report.version, msgspec.json.encode(report).decode(), number)
        with self._transaction() as journal:
            journal.execute("INSERT OR REPLACE INTO accepted VALUES (?, ?, ?, ?)", row)
            journal.execute("DELETE FROM quarantined WHERE device = ?", (device,))
        pieces.complete(self._update(report.version, device))

    def refuse(self, number: int, refused: Refuse) -> None:
        """Write down why an update was refused, and whether its device sits out from now on."""
        with self._transaction() as journal:
            row = (number, refused.device, refused.version, refused.reason)
            journal.execute("INSERT INTO refused VALUES (?, ?, ?, ?)", row)
            if refused.quarantined:
                journal.execute("INSERT OR REPLACE INTO quarantined VALUES (?)", (refused.device,))

    def memory(self) -> Memory:
        """What an earlier process knew of the round that is open, and of its devices."""
        progress = self.progress()
        done = 0 if progress is None else progress.rounds_done
        with self._transaction() as journal:
            row = journal.execute("SELECT number, invited, known FROM asked").fetchone()
            taken = journal.execute("SELECT device, report, number FROM accepted").fetchall()
            recent = dict(journal.execute("SELECT version, number FROM rounds"))
            out = [device for (device,) in journal.execute("SELECT device FROM quarantined")]
        number, invited, known = row or (done, "[]", "[]")
        try:
            return Memory(
                invited=frozenset(json.loads(invited) if number == done else ()),
                known=frozenset(json.loads(known)),
                accepted={d: msgspec.json.decode(r, type=Report) for d, r, _ in taken},
                stored=frozenset(d for d, _, round_ in taken if round_ == done),
                recent={version: n for version, n in recent.items() if n < done},
                quarantined=frozenset(out),
                coming=self.coming(),
            )
        except (ValueError, msgspec.DecodeError) as error:
            raise StoreError(f"{self.path}: damaged ({error}); restore a backup") from None

    # The rollout of personal models

    def keep_plan(self, plan: Plan) -> None:
        """Write down where the rollout stands: before anybody is told."""
        with self._transaction() as journal:
            row = (msgspec.json.encode(plan).decode(),)
            journal.execute("INSERT OR REPLACE INTO rollout VALUES (1, ?)", row)

    def plan(self) -> Plan | None:
        with self._transaction() as journal:
            row = journal.execute("SELECT plan FROM rollout").fetchone()
        try:
            return None if row is None else msgspec.json.decode(row[0], type=Plan)
        except msgspec.DecodeError as error:
            raise StoreError(f"{self.path}: damaged ({error}); restore a backup") from None

    def _sweep_spool(self) -> None:
        """Of an accepted update that is damaged the sender has a copy: it is asked for it again."""
        self.rows.unlink(missing_ok=True)  # of a merge that was cut short
        self.shrink()
        memory = self.memory()
        for device, report in memory.accepted.items():
            path = self._update(report.version, device)
            if device not in memory.stored:
                pieces.forget(path)  # it is in a version
            elif not _whole(path, report.manifest):
                pieces.forget(path)
                with self._transaction() as journal:
                    journal.execute("DELETE FROM accepted WHERE device = ?", (device,))
        for folder in self.spool.iterdir():
            if not any(folder.iterdir()):
                folder.rmdir()

    def prune(self, keep: int) -> None:
        """Remove the models of all but the last versions; the journal remembers them all."""
        with self._transaction() as journal:
            rows = journal.execute(f"{VERSIONS} DESC LIMIT ?", (keep,)).fetchall()
            kept = {path for _, v, *_ in rows for path in (self.model(v), self._state(v))}
        for path in self.models.iterdir():
            if path not in kept:
                path.unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        """What the disk has left."""
        return shutil.disk_usage(self.folder).free

    def model(self, version: str) -> Path:
        """The file of a version's model: the bytes that travel, if nothing else does."""
        return self.models / f"{version}.safetensors"

    def _state(self, version: str) -> Path:
        return self.models / f"{version}.state.safetensors"

    @property
    def published(self) -> Path:
        """What travels to the devices, if that is not the file of the model; it can be remade."""
        return self.folder / "published"


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path}: damaged, its SHA-256 does not fit; restore a backup")


def _whole(path: Path, facts: Manifest) -> bool:
    try:
        pieces.check_whole(path, facts)
    except WireError:
        return False
    return True
