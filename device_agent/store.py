"""What the agent keeps on disk: who it is, the held model, private state, and the unsent update.

One small index file names the others and is replaced atomically, so private state and update
change together or not at all. Each file is checked by its SHA-256 when it is read.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from pathlib import Path

import msgspec
import safetensors
import safetensors.torch
import torch
from msgspec import Struct

from fededge.errors import StoreError, WireError
from fededge.files import disk_error, fsync_folder, replace_file
from fededge.flat import Layout
from fededge.methods.private import Private
from fededge.wire import tensors
from fededge.wire.messages import Manifest, Report

__all__ = ["AgentStore", "Turn"]


class File(Struct, frozen=True):
    """A file of ours, by name and content."""

    name: str
    sha256: str


class Turn(Struct, frozen=True):
    """A turn awaiting the coordinator's word: its report, its update, the private state if accepted."""

    report: Report
    update: File
    private: File


class Index(Struct, frozen=True):
    instance: str
    held: str = ""
    private: File | None = None
    turn: Turn | None = None
    count: int = 0


class AgentStore:
    """The agent's folder. The constructor only stores; `open` and `close` do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = Index(instance="")

    def open(self) -> None:
        """Take the folder for this process alone, and read where we stand."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{self.folder}: another agent uses this state folder") from None
        except OSError as error:
            raise disk_error(self.folder, error) from None
        path = self.folder / "agent.json"
        if not path.exists():
            self._write(Index(instance=uuid.uuid4().hex))
            return
        try:
            self.index = msgspec.json.decode(path.read_bytes(), type=Index)
        except (OSError, msgspec.DecodeError) as error:
            raise StoreError(f"{path}: unreadable ({error}); restore or remove it") from None

    def close(self) -> None:
        self._lock.close()

    # The global model

    def keep(self, version: str, offset: int, data: bytes) -> None:
        """Write a piece of a model that is coming in."""
        path = self._part(version)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, data, offset)
            finally:
                os.close(handle)
        except OSError as error:
            raise disk_error(path, error) from None

    def check_model(
        self, version: str, manifest: Manifest, layout: Layout, vectors: tuple[str, ...]
    ) -> None:
        """Take a complete model as the held one, if it is what its manifest says."""
        part = self._part(version)
        try:
            data = part.read_bytes()
            if len(data) != manifest.bytes or hashlib.sha256(data).hexdigest() != manifest.sha256:
                raise WireError("its SHA-256 does not fit")
            tensors.decode(layout, data, vectors)
        except WireError:
            part.unlink(missing_ok=True)
            raise
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, self._model(version))
        fsync_folder(self.folder)
        before = self.index.held
        self._write(msgspec.structs.replace(self.index, held=version))
        if before and before != version:
            self._model(before).unlink(missing_ok=True)

    def model(
        self, version: str, layout: Layout, vectors: tuple[str, ...]
    ) -> dict[str, torch.Tensor]:
        return tensors.decode(layout, self._model(version).read_bytes(), vectors)

    # Private state and the outbox

    def private(self) -> Private:
        return Private() if self.index.private is None else self._read_private(self.index.private)

    def save_turn(self, now: Private, if_accepted: Private, update: bytes, report: Report) -> None:
        """Keep a turn: what follows the training at once, the rest until the coordinator decides."""
        count = self.index.count + 1
        turn = Turn(
            report,
            self._file(f"{count}.update", update),
            self._file(f"{count}.accepted", _dump(if_accepted)),
        )
        private = self._file(f"{count}.private", _dump(now))
        index = self.index
        self._write(msgspec.structs.replace(index, private=private, turn=turn, count=count))
        self._sweep()

    def settle(self, accepted: bool) -> None:
        """Close the turn: its private state becomes ours if the update was accepted."""
        turn = self.index.turn
        if turn is None:
            return
        private = turn.private if accepted else self.index.private
        self._write(msgspec.structs.replace(self.index, private=private, turn=None))
        self._sweep()

    def update(self) -> bytes:
        """The update of the open turn."""
        turn = self.index.turn
        assert turn is not None
        return self._read(turn.update)

    def _read_private(self, file: File) -> Private:
        try:
            values = safetensors.torch.load(self._read(file))
        except safetensors.SafetensorError as error:
            raise StoreError(f"{self.folder / file.name}: unreadable ({error})") from None
        numbers = {k[1:]: float(v) for k, v in values.items() if k.startswith("#")}
        return Private({**{k: v for k, v in values.items() if not k.startswith("#")}, **numbers})

    def _file(self, name: str, data: bytes) -> File:
        replace_file(self.folder / name, data)
        return File(name, hashlib.sha256(data).hexdigest())

    def _read(self, file: File) -> bytes:
        path = self.folder / file.name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise StoreError(f"{path}: damaged, its SHA-256 does not fit the index")
        return data

    def _sweep(self) -> None:
        """Remove the files of turns that nothing names any more."""
        index = self.index
        files = [index.private, *((index.turn.update, index.turn.private) if index.turn else ())]
        named = {file.name for file in files if file is not None}
        for pattern in ("*.update", "*.private", "*.accepted"):
            for path in self.folder.glob(pattern):
                if path.name not in named:
                    path.unlink(missing_ok=True)

    def _write(self, index: Index) -> None:
        replace_file(self.folder / "agent.json", msgspec.json.encode(index))
        self.index = index

    def _model(self, version: str) -> Path:
        return self.folder / f"{version}.safetensors"

    def _part(self, version: str) -> Path:
        return self.folder / f"{version}.part"


def _dump(private: Private) -> bytes:
    """Tensors under their names, numbers as `#name`."""
    values: dict[str, torch.Tensor] = {}
    for name, value in private.items():
        if isinstance(value, torch.Tensor):
            values[name] = value.detach().cpu().clone()
        else:
            values[f"#{name}"] = torch.tensor(value, dtype=torch.float64)
    return safetensors.torch.save(values)
