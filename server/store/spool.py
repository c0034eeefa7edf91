"""The spool: the updates of the round that is open, one file per device, written chunk by chunk."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import BinaryIO, TypeVar

from fededge.errors import StoreError, WireError
from fededge.flat import Vector
from fededge.storage import pieces
from fededge.storage.files import disk_error, fsync_file, fsync_folder, replacing
from fededge.wire.container import Sink
from fededge.wire.messages import Manifest, Report
from fededge_server.machine.events import NO_BYTES

__all__ = ["Reader", "Spool"]

Reader = Callable[[BinaryIO], Vector]
"""From the file of an update to the model in it; a WireError if there is none."""

T = TypeVar("T")

PLAIN = ".plain"
"""Suffix of an update's decompressed copy, while it is merged."""

ROWS = "rows.f32"
"""A round's updates while they are combined, in the spool."""


class Spool:
    """A folder of updates by version; the journal says which of them count."""

    def __init__(self, folder: Path) -> None:
        self.spool = folder
        self._digests = pieces.Digests()

    def expect(self, device: str, report: Report) -> None:
        """Pieces of this update are to come; none has."""
        path = self.update_file(report.version, device)
        self._digests.forget(path)
        pieces.expect(path, report)

    def keep(
        self,
        version: str,
        device: str,
        offset: int,
        data: bytes | memoryview,
        checksum: int | None = None,
    ) -> None:
        """Write a piece of an update that is expected."""
        path = self.update_file(version, device)
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(path, error) from None
        pieces.write_piece(path, offset, data, checksum)
        self._digests.add(path, offset, data)

    def keep_whole(self, version: str, device: str, data: memoryview) -> None:
        """Write an update that came at once; what came of it before counts no more."""
        path = self.update_file(version, device)
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(path, error) from None
        pieces.write_whole(path, data)

    def coming(self) -> dict[str, tuple[Report, frozenset[int]]]:
        """The updates that were on their way when the process before this one ended."""
        found: dict[str, tuple[Report, frozenset[int]]] = {}
        for path in sorted(self.spool.glob("*/*.coming")):
            data = path.with_suffix(".safetensors")
            report = pieces.expected(data, Report)
            if report is not None and (report.version, report.device) == (
                path.parent.name,
                path.stem,
            ):
                found[path.stem] = report, pieces.arrived(data, report.manifest)
        return found

    def check(
        self,
        version: str,
        device: str,
        facts: Manifest,
        read: Reader,
        data: memoryview = NO_BYTES,
    ) -> Vector:
        """The model in a complete update, which is in `data` or else in the spool.

        Raises:
            WireError: it is not what its report says.
        """
        if data:
            pieces.check_data(data, facts)
            return read(io.BytesIO(data))
        path = self.update_file(version, device)
        pieces.check_whole(path, facts, self._digests)
        try:
            with path.open("rb") as file:
                return read(file)
        except OSError as error:
            raise disk_error(path, error) from None

    def sync(self, places: Iterable[Path]) -> None:
        """Make the files of updates durable; folders are synced once for all of them."""
        paths = [*places]
        try:
            for path in paths:
                fsync_file(path)
            for folder in {path.parent: None for path in paths}:
                fsync_folder(folder)
            fsync_folder(self.spool)
        except OSError as error:
            raise disk_error(self.spool, error) from None

    def expand(self, version: str, device: str, read: Callable[[BinaryIO, Sink], None]) -> None:
        """Keep what `read` makes of an accepted update beside it, until `shrink`."""
        with replacing(self._plain(version, device), synced=False) as plain:
            self._read(self.update_file(version, device), lambda file: read(file, plain))

    def shrink(self) -> None:
        """Remove what `expand` has made."""
        for path in self.spool.glob(f"*/*{PLAIN}"):
            path.unlink(missing_ok=True)

    def update(
        self, version: str, device: str, read: Callable[[BinaryIO], T], expanded: bool = False
    ) -> T:
        """Read an accepted update, or its decompressed copy."""
        place = self._plain if expanded else self.update_file
        return self._read(place(version, device), read)

    def _read(self, path: Path, read: Callable[[BinaryIO], T]) -> T:
        try:
            with path.open("rb") as file:
                return read(file)
        except (OSError, WireError) as error:
            raise StoreError(f"{path}: an accepted update is unreadable ({error})") from None

    def discard(self, version: str, device: str) -> None:
        path = self.update_file(version, device)
        self._digests.forget(path)
        pieces.forget(path)

    def clear_spool(self, keep: Container[str] = ()) -> None:
        """Remove what is left of updates, but for those trained from these versions."""
        for folder in self.spool.iterdir():
            if folder.name not in keep:
                self._digests.forget_all(folder)
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def rows(self) -> Path:
        """Where a merge may put the round's updates for a while."""
        return self.spool / ROWS

    def update_file(self, version: str, device: str) -> Path:
        return self.spool / version / f"{device}.safetensors"

    def _plain(self, version: str, device: str) -> Path:
        return self.spool / version / f"{device}{PLAIN}"
