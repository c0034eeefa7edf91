"""What the coordinator keeps on disk: a journal in SQLite, model files, and the spool of updates.

The journal is one transaction per round, in WAL mode with full sync; model files are written and
synced before the entry that names them, so an entry never names a file that is not there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fededge.errors import ConfigError, StoreError, WireError
from fededge.files import disk_error, fsync_folder, replace_file
from fededge.flat import Layout
from fededge.wire import tensors
from fededge.wire.messages import Manifest

__all__ = ["Progress", "Store"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (
    number INTEGER PRIMARY KEY,
    version TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    accuracy REAL,
    seconds REAL,
    reports TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class Progress:
    """Where a run stands: how many rounds are done, and the version they led to."""

    rounds_done: int
    version: str
    sha256: str
    accuracy: float | None


class Store:
    """The coordinator's folder. The constructor only stores; `open` and `close` do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.spool = folder / "spool"

    def open(self) -> None:
        """Take the folder for this process alone, and make what is missing in it."""
        try:
            self.models.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.spool, ignore_errors=True)
            self.spool.mkdir()
            self._lock = (self.folder / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{self.folder}: another coordinator uses this state folder") from None
        except OSError as error:
            raise disk_error(self.folder, error) from None
        try:
            self._journal = sqlite3.connect(self.folder / "journal.sqlite")
            self._journal.executescript(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;" + SCHEMA
            )
        except sqlite3.Error as error:
            raise StoreError(f"{self.folder / 'journal.sqlite'}: {error}") from None

    def close(self) -> None:
        self._journal.close()
        self._lock.close()

    def agree(self, facts: Mapping[str, str]) -> None:
        """Write down what the run is, or check that it still is: a difference is refused."""
        known = dict(self._journal.execute("SELECT name, value FROM facts"))
        for name, value in facts.items():
            if known.get(name, value) != value:
                raise ConfigError(
                    f"{self.folder}: this run was begun with {name} = {known[name]}, the "
                    f"configuration now says {value}; put it back, or choose another state folder"
                )
        with self._journal:
            self._journal.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", facts.items())

    def fact(self, name: str) -> str | None:
        row = self._journal.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def progress(self) -> Progress | None:
        row = self._journal.execute(
            "SELECT number, version, sha256, accuracy FROM rounds ORDER BY number DESC LIMIT 1"
        ).fetchone()
        return None if row is None else Progress(*row)

    def history(self) -> list[Progress]:
        """Every version of the run, oldest first; read without taking the folder."""
        path = self.folder / "journal.sqlite"
        try:
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as journal:
                rows = journal.execute(
                    "SELECT number, version, sha256, accuracy FROM rounds ORDER BY number"
                ).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{path}: {error}") from None
        return [Progress(*row) for row in rows]

    def advance(
        self,
        progress: Progress,
        layout: Layout,
        model: Tensor,
        state: Mapping[str, Tensor],
        reports: Mapping[str, Mapping[str, float]],
        seconds: float | None,
    ) -> None:
        """Make a new version the current one: its files first, then the entry that names them."""
        replace_file(self._model(progress.version), tensors.encode(layout, {"model": model}))
        replace_file(self._state(progress.version), safetensors.torch.save(dict(state)))
        row = (
            progress.rounds_done,
            progress.version,
            progress.sha256,
            progress.accuracy,
            seconds,
            json.dumps(reports),
        )
        with self._journal:
            self._journal.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)", row)

    def load(self, version: str, layout: Layout) -> tuple[Tensor, dict[str, Tensor]]:
        """The model of a version, and what the method's coordinator half remembers."""
        path = self._model(version)
        try:
            model = tensors.decode(layout, path.read_bytes())["model"]
            state = safetensors.torch.load(self._state(version).read_bytes())
        except (OSError, WireError, safetensors.SafetensorError) as error:
            raise StoreError(f"{path}: the journal's current model is unreadable ({error})") from None
        return model, state

    # The spool: one file per device, written chunk by chunk.

    def keep(self, version: str, device: str, offset: int, data: bytes) -> None:
        path = self._update(version, device)
        try:
            path.parent.mkdir(exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, data, offset)
            finally:
                os.close(handle)
        except OSError as error:
            raise disk_error(path, error) from None

    def check(self, version: str, device: str, facts: Manifest, layout: Layout) -> None:
        """Make a complete update durable, if it is what its report says and fits the layout."""
        path = self._update(version, device)
        with path.open("rb") as file:
            data = file.read(facts.bytes + 1)
            if len(data) != facts.bytes or hashlib.sha256(data).hexdigest() != facts.sha256:
                raise WireError("the SHA-256 of the update does not fit its report")
            tensors.decode(layout, data)
            os.fsync(file.fileno())
        fsync_folder(path.parent)

    def update(self, version: str, device: str, layout: Layout) -> Tensor:
        return tensors.decode(layout, self._update(version, device).read_bytes())["model"]

    def discard(self, version: str, device: str) -> None:
        self._update(version, device).unlink(missing_ok=True)

    def clear_spool(self, version: str) -> None:
        shutil.rmtree(self.spool / version, ignore_errors=True)

    def _model(self, version: str) -> Path:
        return self.models / f"{version}.safetensors"

    def _state(self, version: str) -> Path:
        return self.models / f"{version}.state.safetensors"

    def _update(self, version: str, device: str) -> Path:
        return self.spool / version / f"{device}.safetensors"
