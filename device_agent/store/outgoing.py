"""The update that leaves: synced before, and each chunk checked by its checksum when it is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable
from pathlib import Path

from fededge.errors import StoreError
from fededge.storage.files import disk_error, fsync_file, fsync_folder
from fededge.storage.source import FileSource
from fededge.wire.chunks import Payload
from fededge.wire.source import size
from fededge_agent.store.index import SavedTurn, StoredFile, TrainedTurn

__all__ = ["UpdateReader", "sync_turn"]


class UpdateReader:
    """Reads an update as a whole after a restart, and when a chunk is asked for again.

    A chunk that was not sent because it is damaged here is asked for again. Every chunk is checked
    by its checksum when it is sent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._payload: Payload | None = None
        self._file: StoredFile | None = None
        self._given: set[int] = set()

    def trained(self, turn: TrainedTurn) -> None:
        """An update was written by this process's trainer, which computed its checksums."""
        self._payload, self._file, self._given = None, turn.update, set()
        if turn.checksums:
            source = FileSource(self.folder / turn.update.name)
            self._payload = Payload(source, turn.report.manifest, turn.checksums)

    def read(self, turn: SavedTurn, wanted: Iterable[int]) -> Payload | None:
        """The turn's update, to send the wanted chunks of it; None if it is damaged."""
        asked = {*wanted}
        if not self._known(turn) or asked & self._given:
            self._payload, self._file, self._given = self._checked(turn), turn.update, set()
        self._given |= asked
        return self._payload

    def _known(self, turn: SavedTurn) -> bool:
        """True if the checksums of this update are known, and its file is still there."""
        if self._payload is None or self._file != turn.update:
            return False
        with contextlib.suppress(OSError):
            return self._payload.facts.bytes == size(self._payload.source)
        return False

    def _checked(self, turn: SavedTurn) -> Payload | None:
        path = self.folder / turn.update.name
        with contextlib.suppress(OSError, StoreError):
            payload = Payload.of(FileSource(path), turn.report.manifest.chunk_bytes)
            if payload.facts.sha256 == turn.update.sha256:
                return payload
        return None


def sync_turn(folder: Path, turn: TrainedTurn, known: Container[str]) -> None:
    """Make the files of a turn durable, and their names; those that are `known` already are."""
    try:
        for file in dict.fromkeys((turn.update, turn.private, turn.accepted)):
            if file.name not in known:
                fsync_file(folder / file.name)
        fsync_folder(folder)
    except OSError as error:
        raise disk_error(folder, error) from None
