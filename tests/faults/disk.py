"""A simulated disk: the real stores write to it, a power cut loses data that was not synced.

The files are real ones, on tmpfs where there is one. What writes, syncs, renames and removes is
watched while the disk is mounted: what a sync has made durable is remembered, and after a power cut
each file and each name is either what it was then, or (a coin decides) what it had become since, or
some blocks of a file are new and some old. SQLite's own files are left alone: it syncs on its own,
and a transaction is there or not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

__all__ = ["Disk"]

SHARED_MEMORY = Path("/dev/shm")
OURS = "journal.sqlite"
"""Files whose name begins so are SQLite's."""

SECTOR = 512
"""Bytes that a disk writes at once: more may be torn."""

Entries = dict[str, int]


@dataclass
class Disk:
    """One disk for all processes, each in a folder of its own.

    `before_write` is called before anything changes: there a process may be killed.
    """

    rng: random.Random
    before_write: Callable[[], None] = lambda: None
    full: set[str] = field(default_factory=set)
    _content: dict[int, bytes] = field(default_factory=dict)
    _names: dict[str, Entries] = field(default_factory=dict)
    _folders: set[int] = field(default_factory=set)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Intercept file operations while the block runs; remove the disk afterwards."""
        root = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        self.root = Path(tempfile.mkdtemp(prefix="fededge-faults-", dir=root))
        self.copy = self.rng.choice(("state/spool/*/*.safetensors", "state/private/*.update"))
        self._replace, self._unlink = os.replace, os.unlink
        self._pwrite, self._write = os.pwrite, os.write
        watched: dict[str, Any] = {
            "fsync": self._watch_fsync,
            "replace": self._watch_replace,
            "unlink": self._watch_unlink,
            "pwrite": self._watch_pwrite,
            "write": self._watch_write,
        }
        try:
            with mock.patch.multiple(os, **watched):
                yield
        finally:
            shutil.rmtree(self.root)

    def folder(self, name: str) -> Path:
        """A process's own folder; it is there for good."""
        path = self.root / name
        path.mkdir()
        return path

    # Operations of a process

    def _watch_fsync(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        self._refuse_if_full(path)
        self.before_write()
        if os.path.isdir(path):
            self._names[path] = self._entries(path)
        else:
            with open(path, "rb") as file:
                self._content[os.fstat(handle).st_ino] = file.read()

    def _watch_replace(self, source: str | Path, target: str | Path) -> None:
        self.before_write()
        self._replace(source, target)

    def _watch_unlink(self, path: str | Path, **where: Any) -> None:
        self.before_write()
        self._unlink(path, **where)

    def _watch_pwrite(self, handle: int, data: bytes, offset: int) -> int:
        self._refuse_if_full(os.readlink(f"/proc/self/fd/{handle}"))
        self.before_write()
        return self._pwrite(handle, data, offset)

    def _watch_write(self, handle: int, data: bytes) -> int:
        self._refuse_if_full(os.readlink(f"/proc/self/fd/{handle}"))
        self.before_write()
        return self._write(handle, data)

    def _refuse_if_full(self, path: str) -> None:
        if any(path.startswith(f"{self.root}/{name}/") for name in self.full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def durable(self, path: Path) -> bytes | None:
        """The content of a file that survives any power cut; None if the file may not survive."""
        way, root, there = str(path), str(self.root), -1
        while (folder := os.path.dirname(way)) != root:  # strings: this is asked after every event
            durable = self._names.get(folder, {}).get(os.path.basename(way))
            try:
                now = os.stat(way).st_ino
            except FileNotFoundError:
                return None
            if durable != now:
                return None
            there = now if there < 0 else there
            way = folder
        return self._content.get(there)

    def sync(self, folder: Path) -> None:
        """Make all of a folder durable, as after a while in which nobody wrote to it."""
        self._names[str(folder)] = self._entries(str(folder))
        for path in folder.iterdir():
            if path.is_dir():
                self.sync(path)
            else:
                self._content[path.stat().st_ino] = path.read_bytes()

    # Faults

    def power_cut(self, name: str) -> None:
        """Lose any part of the data that was not synced."""
        with mock.patch.object(self, "before_write"):
            self._roll_back(self.root / name)

    def rot(self, name: str) -> Path | None:
        """Damage what can be had again: a held model, or one copy of an update.

        Which, if any is there. Of updates, those of one side: the other side has the other copy.
        """
        kinds = ("state/private/*.safetensors", self.copy)
        found = sorted(path for kind in kinds for path in (self.root / name).glob(kind))
        if not found:
            return None
        path = self.rng.choice(found)
        self._put(path, path.read_bytes()[:-1] + b"?")
        return path

    def _roll_back(self, folder: Path) -> None:
        durable, now = self._names.get(str(folder), {}), self._entries(str(folder))
        for name in sorted(durable.keys() | now.keys()):
            path = folder / name
            if name.startswith(OURS):
                continue
            if durable.get(name) != now.get(name) and self.rng.random() < 0.5:
                self._put_back(path, durable.get(name))
            elif path.is_dir():
                self._roll_back(path)
            elif path.exists() and self.rng.random() < 0.5:
                self._put(path, self._torn(self._content.get(now[name], b""), path.read_bytes()))
        self._names[str(folder)] = self._entries(str(folder))

    def _put_back(self, path: Path, ino: int | None) -> None:
        """The name as it was durable: another file, or none."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if ino in self._folders:
            path.mkdir()
            for name, inside in self._names.get(str(path), {}).items():
                self._put_back(path / name, inside)
        elif ino is not None:
            self._put(path, self._content.get(ino, b""))

    def _torn(self, durable: bytes, now: bytes) -> bytes:
        """Return a file after a power cut: as last synced, or with some of its newer blocks."""
        if durable == now or self.rng.random() < 0.5:
            return durable
        length = self.rng.choice((len(durable), len(now)))
        whole = (durable.ljust(length, b"\0"), now.ljust(length, b"\0"))
        return b"".join(
            self.rng.choice(whole)[first : first + SECTOR] for first in range(0, length, SECTOR)
        )[:length]

    def _put(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self._content[path.stat().st_ino] = content

    def _entries(self, folder: str) -> Entries:
        """The names in a folder; which of them are folders themselves is remembered."""
        with os.scandir(folder) as scan:
            found = [*scan]
        self._folders.update(entry.inode() for entry in found if entry.is_dir())
        return {entry.name: entry.inode() for entry in found}
