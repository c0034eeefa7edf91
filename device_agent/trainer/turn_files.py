"""The files of one turn: the ones that it begins from, and the ones that it leaves.

They lie in the agent's folder. The index names them only once all are written: until then nothing
has changed, whichever process dies.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fededge.errors import WireError
from fededge.flat import Vector
from fededge.method.private import Private
from fededge.storage.files import replacing
from fededge.storage.source import FileSource
from fededge.wire.chunks import Payload
from fededge.wire.container import Sink
from fededge_agent.store import Index, Reader, StoredFile, is_intact, model_path, read_vectors
from fededge_agent.trainer.private_file import dump, load

__all__ = ["TurnFiles"]


class TurnFiles:
    """Reads what the index names, and writes the files of the turn after it."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.index = index
        self._at_once: StoredFile | None = None

    def model(self, version: str, read: Reader) -> dict[str, Vector]:
        """The held model; WireError if its file is missing or damaged: it can be had again."""
        path, index = model_path(self.folder, version), self.index
        held = StoredFile(path.name, index.held_sha256)
        if version == index.held and not is_intact(self.folder, held):
            raise WireError(f"{path}: missing or damaged, its SHA-256 does not fit")
        return read_vectors(path, read)

    def private(self, run: str = "", wanted: Callable[[str], bool] = bool) -> Private:
        """The wanted pieces of the private state; empty if it is of another run."""
        file = self.index.private
        if file is None or (run and self.index.run != run):
            return Private()
        return load(self.folder / file.name, file.sha256, wanted)

    def write_private(self, private: Private) -> StoredFile:
        """Write the private state that follows the training, accepted or not."""
        self._at_once = self._write("private", lambda file: dump(private, file), self.index.private)
        return self._at_once

    def write_accepted(self, private: Private) -> StoredFile:
        """Write the private state that follows the update, once it is accepted."""
        return self._write("accepted", lambda file: dump(private, file), self._at_once)

    def write_update(
        self, write: Callable[[Sink], object], chunk_bytes: int
    ) -> tuple[StoredFile, Payload]:
        """Write the update; its manifest and checksums are computed meanwhile."""
        path = self._path("update")
        with replacing(path, synced=False, mode=0o600, chunk_bytes=chunk_bytes) as file:
            write(file)
        facts = chunk_bytes, file.size, file.sha256, file.checksums
        return StoredFile(path.name, file.sha256), Payload.written(FileSource(path), *facts)

    def _path(self, kind: str) -> Path:
        return self.folder / f"{self.index.count + 1}.{kind}"

    def _write(
        self, kind: str, write: Callable[[Sink], object], like: StoredFile | None = None
    ) -> StoredFile:
        """Write a file, or name the one `like` it with the same content; the store syncs it."""
        path = self._path(kind)
        with replacing(path, synced=False) as file:
            write(file)
        if like is not None and like.sha256 == file.sha256:
            path.unlink()
            return like
        path.chmod(0o600)  # until then the mode of the folder keeps others out
        return StoredFile(path.name, file.sha256)
