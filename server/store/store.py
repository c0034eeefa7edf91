"""The coordinator's state folder: the journal, model files, and the spool of updates.

Files are written and synced before the entry of the journal that names them. The entries of a
round: whom it asks, each update as it is accepted, and the new version.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

import msgspec

from fededge.errors import StoreError, WireError
from fededge.flat import Layout, Vector, blocks
from fededge.storage import pieces
from fededge.storage.files import (
    disk_error,
    fsync_folder,
    lock_folder,
    make_folder,
    replacing,
    stream_sha256,
)
from fededge.storage.source import FileSource
from fededge.wire import container, tensors
from fededge.wire.chunks import CHUNK_BYTES, Payload
from fededge.wire.messages import Manifest, Report
from fededge_server.machine.facts import Recalled
from fededge_server.store.journal import Connect
from fededge_server.store.order_tables import OrderTables, read_paused, read_pins, read_standings
from fededge_server.store.rows import NewSettings
from fededge_server.store.settings_tables import Role
from fededge_server.store.spool import Spool
from fededge_server.store.tables import AWAKE, Change, CheckedUpdate, Progress

__all__ = ["AWAKE", "Change", "CheckedUpdate", "Progress", "Store"]

log = logging.getLogger("coordinator")

SPOOLED = "SELECT report FROM accepted WHERE number = (SELECT MAX(number) FROM rounds)"


class Store(OrderTables, Spool):
    """The coordinator's folder. The constructor only stores; `open` and `close` do."""

    def __init__(self, folder: Path, connect: Connect = sqlite3.connect) -> None:
        OrderTables.__init__(self, folder, connect)
        Spool.__init__(self, folder / "spool")
        self.models = folder / "models"
        self._checked: set[str] = set()
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Take the folder for this process alone, and make what is missing in it."""
        self._take_folder()
        try:
            self.open_journal()
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
        """Give the folder up, if it was taken."""
        self.close_journal()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def verify(self) -> None:
        """Check the journal as at a start, also while it is in use; StoreError if it is refused."""
        self._check()

    @property
    def marks(self) -> tuple[Path, ...]:
        """The files beside the journal that tell how far it was written."""
        return tuple(self._marks.paths)

    # Versions

    def advance(
        self,
        progress: Progress,
        layout: Layout,
        model: Vector,
        state: Mapping[str, Vector],
        reports: Mapping[str, Mapping[str, float]],
        seconds: float | None,
        settings: NewSettings | None = None,
        begun_with: str = "",
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Payload:
        """Make a new version the current one: its files first, then the entry that names them.

        Returns:
            The model's file, ready to be sent in chunks of this size.
        """
        path = self.model(progress.version)
        with replacing(path, named=False, chunk_bytes=chunk_bytes) as file:
            tensors.write(file, layout, {"model": model})
        with replacing(self._state(progress.version)) as remembered:
            container.write(
                remembered, {name: container.from_array(v) for name, v in state.items()}
            )
        self.enter(progress, remembered.sha256, reports, seconds, settings, begun_with)
        facts = chunk_bytes, file.size, file.sha256, file.checksums
        return Payload.written(FileSource(path), *facts)

    def load(self, version: str, layout: Layout) -> tuple[Vector, dict[str, Vector]]:
        """The model of a version, and the state of the method's coordinator half."""
        sha256, state_sha256 = self.hashes(version)
        path = self.model(version)
        try:
            with path.open("rb") as file:
                model = tensors.decode(layout, file)["model"]
            if layout.sha256(model) != sha256:
                raise _damaged(path)
            path = self._state(version)
            with path.open("rb") as file:
                if stream_sha256(file) != state_sha256:
                    raise _damaged(path)
                return model, {n: container.to_array(p) for n, p in container.read(file).items()}
        except (OSError, WireError) as error:
            raise StoreError(f"{path}: unreadable ({error}); restore a backup") from None

    def part(self, version: str, layout: Layout, span: slice) -> Vector:
        """Some numbers of a version's model; the first time all of it is checked."""
        path = self.model(version)
        try:
            with path.open("rb") as file:
                if version not in self._checked:
                    spans = blocks(0, layout.size)
                    parts = (tensors.decode_part(layout, file, s, "float32") for s in spans)
                    if layout.sha256_of(parts) != self.hashes(version)[0]:
                        raise _damaged(path)
                    self._checked.add(version)
                return tensors.decode_part(layout, file, span, "float32")
        except (OSError, WireError) as error:
            raise StoreError(f"{path}: unreadable ({error}); restore a backup") from None

    # The round that is open

    def spooled(self) -> list[tuple[str, str, str]]:
        """Version, device and SHA-256 of the open round's updates, as `history` reads."""
        with self._reading() as journal:
            rows = journal.execute(SPOOLED).fetchall()
        reports = [msgspec.json.decode(row, type=Report) for (row,) in rows]
        return [(each.version, each.device, each.manifest.sha256) for each in reports]

    def accept(self, *updates: CheckedUpdate) -> None:
        """Make updates durable that passed their checks, then take them; a group costs one commit.

        Their pieces are counted no more.
        """
        places = [self.update_file(update.report.version, update.device) for update in updates]
        self.sync(places)
        super().accept(*updates)
        for path in places:
            pieces.complete(path)

    def recall(self, wall: float = 0.0) -> Recalled:
        """All that an earlier process knew; `wall`: the time of day, for what an order limits."""
        with self._transaction() as journal:
            ordered, paused = read_standings(journal), read_paused(journal)
            changing = bool(self._rows("settings", "role = ?", Role.ORDERED.value))
        left = {d: (o.at(wall), o.until - wall) for d, o in ordered.items()}
        return replace(
            super().recall(),
            coming=self.coming(),
            standings=left,
            paused=paused,
            changing=changing,
        )

    def _sweep_spool(self) -> None:
        """Forget accepted updates that are damaged: their senders have copies and are asked."""
        self.rows.unlink(missing_ok=True)  # of a merge that was cut short
        self.shrink()
        recalled = self.recall()
        for device, report in recalled.accepted.items():
            path = self.update_file(report.version, device)
            if device not in recalled.stored:
                pieces.forget(path)  # it is in a version
            elif not _whole(path, report.manifest):
                log.warning("%s: missing or damaged; %s is asked for it again", path, device)
                pieces.forget(path)
                self.unaccept(device)
        for folder in self.spool.iterdir():
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def prune(self, keep: int, also: Iterable[str] = ()) -> None:
        """Remove the models of all but the last and the pinned versions; the journal remembers all.

        Args:
            also: further versions to keep.
        """
        with self._transaction() as journal:
            pins = read_pins(journal)
        versions = {*also, *pins, *self.last_versions(keep)}
        kept = {path for version in versions for path in self.version_files(version)}
        self._checked &= versions
        for path in self.models.iterdir():
            if path not in kept:
                path.unlink(missing_ok=True)

    def kept(self, version: str) -> bool:
        """True if a version's model and the method's state of then are there."""
        return all(path.exists() for path in self.version_files(version))

    @property
    def free_bytes(self) -> int:
        """Free space on the disk."""
        return shutil.disk_usage(self.folder).free

    def model(self, version: str) -> Path:
        """The file of a version's model: the bytes that travel, if nothing else does."""
        return self.models / f"{version}.safetensors"

    def _state(self, version: str) -> Path:
        return self.models / f"{version}.state.safetensors"

    def version_files(self, version: str) -> tuple[Path, Path]:
        """The files of a version: its model, and the state of the method's coordinator half."""
        return self.model(version), self._state(version)

    @property
    def published(self) -> Path:
        """The file that is sent to devices, if that is not the model's; it can be made again."""
        return self.folder / "published"


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path}: damaged, its SHA-256 does not fit; restore a backup")


def _whole(path: Path, facts: Manifest) -> bool:
    try:
        pieces.check_whole(path, facts)
    except WireError:
        return False
    return True
