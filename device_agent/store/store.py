"""The agent's files: its identity, the held model, private state, and the last update.

One small index names the others and is written atomically, so private state and update change
together or not at all. The agent's process alone writes the index; its trainer process writes the
files of a turn before the index names them. Every file is checked by its SHA-256 when it is read.
The previous index and the previous private state are kept, in case the current ones are damaged.
A turn is synced before its update leaves. The coordinator's answer and the model can be had again:
they are written without a sync, and become durable with the next turn.
Only the agent's user can enter the folder; the models for apps are elsewhere.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from fededge.errors import StoreError, WireError
from fededge.storage import pieces
from fededge.storage.files import (
    disk_error,
    make_folder,
)
from fededge.wire.chunks import Payload
from fededge.wire.messages import Manifest
from fededge_agent.store.folder_lock import take_lock
from fededge_agent.store.index import Index, SavedTurn, StoredFile, TrainedTurn
from fededge_agent.store.index_file import IndexFile
from fededge_agent.store.model_file import Reader, is_intact, model_path, read_vectors
from fededge_agent.store.outgoing import UpdateReader, sync_turn
from fededge_agent.store.sweeping import SUFFIXES, private_names, sweep

__all__ = ["PRIVATE", "AgentStore", "exports_folder"]

log = logging.getLogger("agent")

PRIVATE = "private"
"""The agent's own folder within its state folder."""

EXPORTS = "exports"
"""Its folder of personal models that wait for their export; a new process begins without them."""


def exports_folder(state: Path) -> Path:
    return state / PRIVATE / EXPORTS


class AgentStore:
    """The agent's folder. The constructor only stores; `open` and `close` do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / PRIVATE
        self._index = IndexFile(self.folder)
        self._lock: IO[str] | None = None
        self._digests = pieces.Digests()
        self._training = False  # the files of the next turn are being written
        self._updates = UpdateReader(self.folder)
        self._changing = threading.RLock()  # the loop settles turns, the worker saves them

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
            shutil.rmtree(self.folder / EXPORTS, ignore_errors=True)
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
        self._lock = take_lock(self.folder)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The lock's descriptor: the folder stays locked while any process holds it open."""
        return () if self._lock is None or self._lock.closed else (self._lock.fileno(),)

    def _begin(self) -> None:
        """Make a new identity, but only in a folder without files of another one."""
        ours = SUFFIXES - {".new"}
        left = [p for p in self.folder.iterdir() if p.suffix in ours or p.match("agent*.json")]
        if left:
            raise StoreError(
                f"{self._index.paths[0]}: unreadable, and so is the one before; restore a backup, "
                f"or remove {self.folder} to begin as a new device without its private state"
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
        self._index.change(private=index.earlier, earlier=None, renewed=index.earlier_renewed)

    # The global model

    def expect(self, version: str, manifest: Manifest) -> None:
        """Expect the chunks of this model, and discard those of any other."""
        for part in self.folder.glob("*.coming"):
            pieces.forget(part.with_suffix(".part"))
        self._digests.forget(self._part(version))
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

    def keep(
        self, version: str, offset: int, data: bytes | memoryview, checksum: int | None = None
    ) -> None:
        """Write a chunk of the model that is expected."""
        pieces.write_piece(self._part(version), offset, data, checksum)
        self._digests.add(self._part(version), offset, data)

    def check_model(self, version: str, manifest: Manifest, read: Reader) -> None:
        """Make a complete model the held one, if it matches its manifest."""
        part = self._part(version)
        try:
            pieces.check_whole(part, manifest, self._digests)
            read_vectors(part, read)
        except WireError:
            pieces.forget(part)
            raise
        try:
            os.replace(part, self._model(version))
        except OSError as error:
            raise disk_error(part, error) from None
        with self._changing:
            self._index.change(synced=False, held=version, held_sha256=manifest.sha256)
            pieces.forget(part)
            self._sweep()

    # Private state and the outbox

    @property
    def outgoing(self) -> SavedTurn | None:
        """The turn whose update the coordinator may ask for: pending, or accepted last."""
        return self.index.turn or self.index.last_accepted

    def begin_turn(self) -> Index:
        """Keep the files of the next turn while they are written; the index to begin it from."""
        self._training = True
        return self.index

    def save_turn(self, turn: TrainedTurn, ledger: Mapping[str, int] | None = None) -> None:
        """Save a turn; `turn.accepted` becomes the private state when the update is accepted.

        Args:
            ledger: at least the bytes that have left once the turn's update has, by field.
        """
        with self._changing:
            sync_turn(self.folder, turn, private_names(self.index))
            earlier = self.index.private if self.index.run == turn.report.run else None
            self._index.change(
                run=turn.report.run,
                private=turn.private,
                earlier=earlier,
                renewed=turn.renewed,
                earlier_renewed=self.index.renewed,
                turn=SavedTurn(turn.report, turn.update, turn.accepted),
                last_accepted=None,
                count=self.index.count + 1,
                ledger=dict(ledger or self.index.ledger),
            )
            self._updates.trained(turn)
            self.drop_turn()  # no file of this one: the index names them now

    @property
    def ledger(self) -> Mapping[str, int]:
        """A lower bound of the bytes that left, by field; empty if the ledger's file counts."""
        return self.index.ledger

    def count(self, ledger: Mapping[str, int]) -> None:
        """Make the bytes that have left durable, by field; nothing if the ledger's file counts."""
        with self._changing:
            self._index.change(ledger=dict(ledger))

    def drop_turn(self) -> None:
        """Remove the files of a turn that was not saved: they may fill the disk."""
        with self._changing:
            self._training = False
            self._sweep()

    def settle(self, accepted: bool, late: bool = False) -> None:
        """Save the coordinator's decision on the pending turn."""
        with self._changing:
            turn, private = self.index.turn, self.index.private
            if turn is None:
                return
            if accepted:
                now = {
                    "private": turn.private,
                    "earlier": private,
                    "earlier_renewed": self.index.renewed,
                    "last_accepted": turn,
                }
                self._index.change(synced=False, turn=None, **now)
            else:
                missed = turn if late else self.index.missed
                self._index.change(synced=False, turn=None, missed=missed)
            self._sweep()

    def update(self, wanted: Iterable[int] = ()) -> Payload | None:
        """The update of the outgoing turn; None if it is damaged, and its turn must be taken again.

        The private state is then reset to the one that the turn began with, so that training gives
        the same update. `turn.private` is kept: the coordinator may have the update already.

        Args:
            wanted: the chunks that were asked for.
        """
        turn = self.outgoing
        assert turn is not None
        payload = self._updates.read(turn, wanted)
        if payload is None:
            log.warning("%s: damaged; taking its turn again", self.folder / turn.update.name)
            with self._changing:
                index = self.index
                self._index.change(
                    private=index.earlier, renewed=index.earlier_renewed, last_accepted=None
                )
        return payload

    # Files

    def _intact(self, file: StoredFile) -> bool:
        return is_intact(self.folder, file)

    def _sweep(self) -> None:
        """Remove files of old turns and old versions."""
        draft = f"{self.index.count + 1}." if self._training else ""
        sweep(self.folder, self.index, self._index.spare, draft)

    def trust(self, issued: int) -> None:
        """Remember when the newest signed state was issued."""
        with self._changing:
            self._index.trust(issued)

    def _model(self, version: str) -> Path:
        return model_path(self.folder, version)

    def _part(self, version: str) -> Path:
        return self.folder / f"{version}.part"
