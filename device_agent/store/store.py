"""What the agent keeps on disk: who it is, the held model, private state, and the last update.

One small index file names the others and is replaced atomically, so private state and update
change together or not at all. Each file is checked by its SHA-256 when it is read; the index and
the private state before the present ones are kept too, and serve when those are damaged. All lie
in a folder of their own that only the agent's user can enter: the models for apps are elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

import msgspec
import torch

from fededge.errors import FedEdgeError, StoreError, WireError
from fededge.method.private import Private
from fededge.storage import pieces
from fededge.storage.files import (
    disk_error,
    fsync_folder,
    lock_folder,
    make_folder,
    replace_file,
    replacing,
    stream_sha256,
)
from fededge.storage.sealed import read_sealed, sealed
from fededge.storage.source import FileSource
from fededge.wire import container
from fededge.wire.chunks import Payload
from fededge.wire.container import Sink
from fededge.wire.messages import Manifest, Report
from fededge_agent.store.index import Index, SavedTurn, StoredFile
from fededge_agent.store.private_file import dump, private_of

__all__ = ["AgentStore", "SavedTurn"]

log = logging.getLogger("agent")

SUFFIXES = frozenset({".update", ".accepted", ".private", ".safetensors", ".new"})
"""Files that are removed once nothing names them."""


Reader = Callable[[BinaryIO], dict[str, torch.Tensor]]
"""From the file of a model to its vectors; a WireError if there are none."""


class AgentStore:
    """The agent's folder. The constructor only stores; `open` and `close` do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "private"
        self.index = Index(instance="")
        self._lock: IO[str] | None = None
        self._trusted = 0
        self._drafts: set[str] = set()  # files of the turn that is being saved

    def open(self) -> None:
        """Take the folder for this process alone, and read where we stand."""
        self._take_folder()
        try:
            self._read_index()
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

    def _read_index(self) -> None:
        """Read where we stand, or where we stood one change earlier; begin if nothing is there."""
        for path in (self._index, self._before):
            index = read_sealed(path, Index)
            if index is not None:
                self.index = index
                break
        else:
            self._begin()
            return
        if path == self._before:
            log.warning("%s: damaged; going on from the one before", self._index)
            self._write(index)
        elif read_sealed(self._before, Index) is None:
            log.warning("%s: missing or damaged; it is written anew", self._before)
            self._replace(self._before.name, sealed(index))

    def _begin(self) -> None:
        """A new identity: only where there is nothing that belonged to another one."""
        ours = SUFFIXES - {".new"}
        left = [p for p in self.folder.iterdir() if p.suffix in ours or p.match("agent*.json")]
        if left:
            raise StoreError(
                f"{self._index}: unreadable, and so is the one before; restore a backup, or remove "
                f"{self.folder} to begin as a new device without its private state"
            )
        self._write(Index(instance=uuid.uuid4().hex))

    def _recover(self) -> None:
        """Do without what can be had again; of private state, go back to the one before."""
        index = self.index
        if index.held and not self._intact(
            StoredFile(self._model(index.held).name, index.held_sha256)
        ):
            log.warning("%s: damaged; it is fetched again", self._model(index.held))
            self._change(held="", held_sha256="")
        if index.last_accepted is not None and not self._intact(index.last_accepted.update):
            log.warning(
                "%s: damaged; it was accepted", self.folder / index.last_accepted.update.name
            )
            self._change(last_accepted=None)
        if self.index.private is not None and not self._intact(self.index.private):
            self._go_back()

    def _go_back(self) -> None:
        """Never to nothing: what a device has learnt would be gone without a word."""
        index = self.index
        assert index.private is not None
        lost = self.folder / index.private.name
        if index.earlier is None or not self._intact(index.earlier):
            raise StoreError(
                f"{lost}: damaged, its SHA-256 does not fit, and there is none before it; "
                f"restore a backup, or remove {self.folder} to begin as a new device"
            )
        log.warning("%s: damaged; going on from the private state before it", lost)
        self._change(private=index.earlier, earlier=None)

    # The global model

    def expect(self, version: str, manifest: Manifest) -> None:
        """A model is to come, and no other: what had come of one is not needed any more."""
        for part in self.folder.glob("*.coming"):
            pieces.forget(part.with_suffix(".part"))
        pieces.expect(self._part(version), manifest)

    def coming(self) -> tuple[str, Manifest, frozenset[int]] | None:
        """The model that was on its way when the process before this one ended."""
        for listed in self.folder.glob("*.coming"):
            part = listed.with_suffix(".part")
            manifest = pieces.expected(part, Manifest)
            if manifest is not None and listed.stem != self.index.held:
                return listed.stem, manifest, pieces.arrived(part, manifest)
            pieces.forget(part)
        return None

    def keep(self, version: str, offset: int, data: bytes) -> None:
        """Write a piece of a model that is coming in."""
        pieces.write_piece(self._part(version), offset, data)

    def check_model(self, version: str, manifest: Manifest, read: Reader) -> None:
        """Take a complete model as the held one, if it is what its manifest says."""
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
        self._change(held=version, held_sha256=manifest.sha256)
        pieces.forget(part)
        self._sweep()

    def model(self, version: str, read: Reader) -> dict[str, torch.Tensor]:
        """The held model; a WireError if its file is gone or damaged: it can be fetched again."""
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
        """The private state, or the pieces of it that are wanted; empty if it is of another run."""
        index = self.index
        if index.private is None or (run and index.run != run):
            return Private()
        return self._read_private(index.private, wanted)

    @property
    def outgoing(self) -> SavedTurn | None:
        """The turn whose update may be asked for: the undecided one, or the last accepted one."""
        return self.index.turn or self.index.last_accepted

    def write_private(self, private: Private) -> StoredFile:
        """Write the private state that the next turn leaves at once."""
        return self._written("private", lambda file: dump(private, file))

    def write_update(self, write: Callable[[Sink], object]) -> tuple[StoredFile, Path]:
        """Write the update of the next turn; it is nobody's until `save_turn` names it."""
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
            self._sweep()  # the disk may be full of them
            raise
        path.chmod(0o600)  # the folder's own mode keeps others out before that
        return StoredFile(name, file.sha256)

    def save_turn(
        self, now: StoredFile, update: StoredFile, if_accepted: Private, report: Report
    ) -> None:
        """Keep a turn: what follows the training at once, the rest until it is decided on."""
        private = self._written("accepted", lambda file: dump(if_accepted, file))
        earlier = self.index.private if self.index.run == report.run else None
        self._change(
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
        """Close the turn: its private state becomes ours if the update was accepted."""
        turn = self.index.turn
        if turn is None:
            return
        if accepted:
            earlier = self.index.private
            self._change(private=turn.private, earlier=earlier, turn=None, last_accepted=turn)
        else:
            self._change(turn=None, missed=turn if late else self.index.missed)
        self._sweep()

    def update(self) -> Payload | None:
        """The update of the outgoing turn; None if it is damaged, and the turn to be taken again.

        The private state is then again the one that the turn began with, so that the same comes of
        it; what follows the update is kept, for the coordinator may have it already.
        """
        turn = self.outgoing
        assert turn is not None
        path = self.folder / turn.update.name
        with contextlib.suppress(OSError, StoreError):
            payload = Payload.of(FileSource(path), turn.report.manifest.chunk_bytes)
            if payload.facts.sha256 == turn.update.sha256:
                return payload
        log.warning("%s: damaged; its turn is taken again", path)
        self._change(private=self.index.earlier, last_accepted=None)
        return None

    def _read_private(self, file: StoredFile, wanted: Callable[[str], bool]) -> Private:
        path = self.folder / file.name
        try:
            with path.open("rb") as opened:
                if stream_sha256(opened) != file.sha256:
                    raise StoreError(
                        f"{path}: damaged, its SHA-256 does not fit; start the agent again"
                    )
                values = container.read(opened, lambda name: wanted(name.removeprefix("#")))
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
        except WireError as error:
            raise StoreError(f"{path}: unreadable ({error})") from None
        return private_of(values)

    # Files

    def _intact(self, file: StoredFile) -> bool:
        try:
            with (self.folder / file.name).open("rb") as opened:
                return stream_sha256(opened) == file.sha256
        except OSError:
            return False

    def _sweep(self) -> None:
        """Remove what the index does not name: files of old turns, and models of old versions."""
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
        """Remember when the newest signed state was issued: with the next change of the index.

        The first time at once: the index must know that there was one.
        """
        self._trusted = issued
        if not self.index.trusted:
            self._change()

    def _change(self, **fields: Any) -> None:
        trusted = max(self._trusted, self.index.trusted)
        self._write(msgspec.structs.replace(self.index, trusted=trusted, **fields))

    def _write(self, index: Index) -> None:
        self._replace(self._before.name, sealed(self.index if self.index.instance else index))
        self._replace(self._index.name, sealed(index))
        self.index = index

    def _replace(self, name: str, data: bytes) -> None:
        path = self.folder / name
        replace_file(path, data)
        path.chmod(0o600)  # the folder's own mode keeps others out before that

    @property
    def _index(self) -> Path:
        return self.folder / "agent.json"

    @property
    def _before(self) -> Path:
        return self.folder / "agent.before.json"

    def _model(self, version: str) -> Path:
        return self.folder / f"{version}.safetensors"

    def _part(self, version: str) -> Path:
        return self.folder / f"{version}.part"
