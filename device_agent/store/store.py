"""The agent's files: its identity, the held model, private state, and the last update.

One small index names the others and is replaced atomically, so private state and update change
together or not at all. Every file is checked by its SHA-256 when it is read. The previous index and
the previous private state are kept, in case the current ones are damaged. Only the agent's user can
enter the folder; the models for apps are elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO

import torch

from fededge.errors import FedEdgeError, StoreError, WireError
from fededge.method.private import Private
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
from fededge.wire.chunks import Payload
from fededge.wire.container import Sink
from fededge.wire.messages import Manifest, Report
from fededge_agent.store.index import Index, SavedTurn, StoredFile
from fededge_agent.store.index_file import IndexFile
from fededge_agent.store.private_file import dump, load

__all__ = ["AgentStore", "SavedTurn"]

log = logging.getLogger("agent")

SUFFIXES = frozenset({".update", ".accepted", ".private", ".safetensors", ".new"})
"""Files that are removed once the index does not name them."""


Reader = Callable[[BinaryIO], dict[str, torch.Tensor]]
"""Reads the vectors of a model's file; raises WireError if it is invalid."""


class AgentStore:
    """The agent's folder. The constructor only stores; `open` and `close` do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "private"
        self._index = IndexFile(self.folder)
        self._lock: IO[str] | None = None
        self._drafts: set[str] = set()  # files of the turn that is being saved

    @property
    def index(self) -> Index:
        return self._index.current

    def open(self) -> None:
        """Lock the folder for this process, read the index and repair what is damaged."""
        self._take_folder()
        try:
            if not self._index.read():
                self._begin()
            self._recover()
            self._sweep()
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """Release the folder; closing twice does no harm."""
        if self._lock is not None:
            self._lock.close()

    def _take_folder(self) -> None:
        try:
            make_folder(self.folder.parent)
            make_folder(self.folder)
            self.folder.chmod(0o700)
        except OSError as error:
            raise disk_error(self.folder, error) from None
        self._lock = lock_folder(self.folder, "another agent")

    def _begin(self) -> None:
        """Make a new identity, but only in a folder without files of another one."""
        ours = SUFFIXES - {".new"}
        left = [p for p in self.folder.iterdir() if p.suffix in ours or p.match("agent*.json")]
        if left:
            raise StoreError(
                f"{self._index.path}: unreadable, and so is the one before; restore a backup, or "
                f"remove {self.folder} to begin as a new device without its private state"
            )
        self._index.begin(Index(instance=uuid.uuid4().hex))

    def _recover(self) -> None:
        """Forget damaged files that can be had again; replace private state by the one before."""
        index = self.index
        if index.held and not self._intact(
            StoredFile(self._model(index.held).name, index.held_sha256)
        ):
            log.warning("%s: damaged; downloading it again", self._model(index.held))
            self._index.change(held="", held_sha256="")
        if index.last_accepted is not None and not self._intact(index.last_accepted.update):
            log.warning(
                "%s: damaged; it was accepted", self.folder / index.last_accepted.update.name
            )
            self._index.change(last_accepted=None)
        if self.index.private is not None and not self._intact(self.index.private):
            self._go_back()

    def _go_back(self) -> None:
        """Use the private state before; without one, stop rather than lose what was learnt."""
        index = self.index
        assert index.private is not None
        lost = self.folder / index.private.name
        if index.earlier is None or not self._intact(index.earlier):
            raise StoreError(
                f"{lost}: damaged, its SHA-256 does not fit, and there is none before it; "
                f"restore a backup, or remove {self.folder} to begin as a new device"
            )
        log.warning("%s: damaged; using the private state before it", lost)
        self._index.change(private=index.earlier, earlier=None)

    # The global model

    def expect(self, version: str, manifest: Manifest) -> None:
        """Expect the chunks of this model, and discard those of any other."""
        for part in self.folder.glob("*.coming"):
            pieces.forget(part.with_suffix(".part"))
        pieces.expect(self._part(version), manifest)

    def coming(self) -> tuple[str, Manifest, frozenset[int]] | None:
        """The model that an earlier process was downloading, and the chunks that it has."""
        for listed in self.folder.glob("*.coming"):
            part = listed.with_suffix(".part")
            manifest = pieces.expected(part, Manifest)
            if manifest is not None and listed.stem != self.index.held:
                return listed.stem, manifest, pieces.arrived(part, manifest)
            pieces.forget(part)
        return None

    def keep(self, version: str, offset: int, data: bytes) -> None:
        """Write a chunk of the model that is expected."""
        pieces.write_piece(self._part(version), offset, data)

    def check_model(self, version: str, manifest: Manifest, read: Reader) -> None:
        """Make a complete model the held one, if it matches its manifest."""
        part = self._part(version)
        try:
            pieces.check_whole(part, manifest)
            self._read_vectors(part, read)
        except WireError:
            pieces.forget(part)
            raise
        try:
            os.replace(part, self._model(version))
            fsync_folder(self.folder)
        except OSError as error:
            raise disk_error(part, error) from None
        self._index.change(held=version, held_sha256=manifest.sha256)
        pieces.forget(part)
        self._sweep()

    def model(self, version: str, read: Reader) -> dict[str, torch.Tensor]:
        """The held model; WireError if its file is missing or damaged: it can be had again."""
        path, index = self._model(version), self.index
        if version == index.held and not self._intact(StoredFile(path.name, index.held_sha256)):
            raise WireError(f"{path}: missing or damaged, its SHA-256 does not fit")
        return self._read_vectors(path, read)

    def _read_vectors(self, path: Path, read: Reader) -> dict[str, torch.Tensor]:
        try:
            with path.open("rb") as file:
                return read(file)
        except OSError as error:
            raise WireError(f"{path}: cannot be read ({error.strerror})") from None

    # Private state and the outbox

    def private(self, run: str = "", wanted: Callable[[str], bool] = bool) -> Private:
        """The wanted pieces of the private state; empty if it is of another run."""
        index = self.index
        if index.private is None or (run and index.run != run):
            return Private()
        file = index.private
        return load(self.folder / file.name, file.sha256, wanted)

    @property
    def outgoing(self) -> SavedTurn | None:
        """The turn whose update the coordinator may ask for: pending, or accepted last."""
        return self.index.turn or self.index.last_accepted

    def write_private(self, private: Private) -> StoredFile:
        """Write the private state that follows the training, accepted or not."""
        return self._written("private", lambda file: dump(private, file))

    def write_update(self, write: Callable[[Sink], object]) -> tuple[StoredFile, Path]:
        """Write the update of the next turn; `save_turn` puts it into the index."""
        file = self._written("update", write)
        return file, self.folder / file.name

    def _written(self, kind: str, write: Callable[[Sink], object]) -> StoredFile:
        name = f"{self.index.count + 1}.{kind}"
        path = self.folder / name
        self._drafts.add(name)
        try:
            with replacing(path) as file:
                write(file)
        except FedEdgeError:
            self._drafts.clear()
            self._sweep()  # they may fill the disk
            raise
        path.chmod(0o600)  # until then the mode of the folder keeps others out
        return StoredFile(name, file.sha256)

    def save_turn(
        self, now: StoredFile, update: StoredFile, if_accepted: Private, report: Report
    ) -> None:
        """Save a turn; `if_accepted` becomes the private state when the update is accepted."""
        private = self._written("accepted", lambda file: dump(if_accepted, file))
        earlier = self.index.private if self.index.run == report.run else None
        self._index.change(
            run=report.run,
            private=now,
            earlier=earlier,
            turn=SavedTurn(report, update, private),
            last_accepted=None,
            count=self.index.count + 1,
        )
        self._drafts.clear()
        self._sweep()

    def settle(self, accepted: bool, late: bool = False) -> None:
        """Save the coordinator's decision on the pending turn."""
        turn = self.index.turn
        if turn is None:
            return
        if accepted:
            earlier = self.index.private
            self._index.change(private=turn.private, earlier=earlier, turn=None, last_accepted=turn)
        else:
            self._index.change(turn=None, missed=turn if late else self.index.missed)
        self._sweep()

    def update(self) -> Payload | None:
        """The update of the outgoing turn; None if it is damaged, and its turn must be taken again.

        The private state is then reset to the one that the turn began with, so that training gives
        the same update. `turn.private` is kept: the coordinator may have the update already.
        """
        turn = self.outgoing
        assert turn is not None
        path = self.folder / turn.update.name
        with contextlib.suppress(OSError, StoreError):
            payload = Payload.of(FileSource(path), turn.report.manifest.chunk_bytes)
            if payload.facts.sha256 == turn.update.sha256:
                return payload
        log.warning("%s: damaged; taking its turn again", path)
        self._index.change(private=self.index.earlier, last_accepted=None)
        return None

    # Files

    def _intact(self, file: StoredFile) -> bool:
        try:
            with (self.folder / file.name).open("rb") as opened:
                return stream_sha256(opened) == file.sha256
        except OSError:
            return False

    def _sweep(self) -> None:
        """Remove files that the index does not name: of old turns and old versions."""
        index = self.index
        files = [index.private, index.earlier]
        if self.outgoing is not None:
            files += [self.outgoing.update, self.outgoing.private]
        named = {file.name for file in files if file is not None} | self._drafts
        if index.held:
            named.add(self._model(index.held).name)
        for path in self.folder.iterdir():
            if path.suffix in SUFFIXES and path.name not in named:
                path.unlink(missing_ok=True)

    def trust(self, issued: int) -> None:
        """Remember when the newest signed state was issued."""
        self._index.trust(issued)

    def _model(self, version: str) -> Path:
        return self.folder / f"{version}.safetensors"

    def _part(self, version: str) -> Path:
        return self.folder / f"{version}.part"
