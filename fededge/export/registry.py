"""The folder of a device's exported models, and the link `current` that apps follow."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import Tensor

from fededge.errors import StoreError
from fededge.export import folders as shelf
from fededge.export.candidate import Draft, compared
from fededge.export.manifest import Manifest, Origin
from fededge.export.registry_index import Answered, Event, Record
from fededge.export.template import Template
from fededge.flat import FlatModel
from fededge.predictor.manifest import BAD, CURRENT, MANIFEST, MODEL
from fededge.storage.files import disk_error, read_bounded, stream_sha256

__all__ = ["Models"]

log = logging.getLogger(__name__)

INDEX = "index.json"
LARGEST_REPORT = 1 << 16
# The current model, and the one that a rollback leads to.
STEPS_BACK = 2

Fits = Callable[[Manifest], bool]


def _any(_: Manifest) -> bool:
    return True


def _usable(manifest: Manifest, record: Record, fits: Fits) -> bool:
    return manifest.weights not in record.bad and fits(manifest)


def _refuse_bad(record: Record, number: int, manifest: Manifest) -> None:
    if manifest.weights in record.bad:
        raise StoreError(f"model {number} was reported bad: it is not made current again")


@dataclass(frozen=True)
class Models:
    """`<folder>/<n>/model.onnx`, its variants and `manifest.json`; `<folder>/current` -> `<n>`.

    The agent and `fededge export` may write at the same time, from any thread: each change is made
    under a lock. Whatever moment a writer dies at, `current` is absent (before the first model) or
    leads to a complete, compared model.
    """

    folder: Path
    keep: int = 3

    # Asking

    def current(self) -> Manifest | None:
        """The manifest of the model that apps use now; None before the first."""
        number = self.number()
        return None if number is None else self.manifest(number)

    def number(self) -> int | None:
        """Where `current` leads."""
        try:
            return int((self.folder / CURRENT).readlink().name)
        except (OSError, ValueError):
            return None

    def manifest(self, number: int) -> Manifest:
        if not self.path(number).is_dir():
            there = ", ".join(map(str, self.numbers())) or "none"
            raise StoreError(f"{self.folder}: there is no model {number}; there are: {there}")
        return Manifest.read(self.path(number) / MANIFEST)

    def path(self, number: int) -> Path:
        return self.folder / str(number)

    def numbers(self) -> list[int]:
        """The models that are kept, oldest first."""
        return shelf.numbers(self.folder)

    def manifests(self) -> dict[int, Manifest]:
        """The models by number, oldest first; a damaged one is left out: nobody can use it."""
        found = {}
        for number in self.numbers():
            with contextlib.suppress(StoreError):
                found[number] = self.manifest(number)
        return found

    def check(self, number: int) -> None:
        """Read the files of a model again, for it may be old: are they those of its manifest?"""
        manifest = self.manifest(number)
        hashes = {MODEL: manifest.sha256} | {v.file: v.sha256 for v in manifest.variants.values()}
        for name, sha256 in hashes.items():
            path = self.path(number) / name
            try:
                if path.is_fifo():  # it would wait for its writer, and all others for the lock
                    raise StoreError(f"{path}: damaged, it is a pipe")
                with path.open("rb") as file:
                    same = stream_sha256(file) == sha256
            except OSError as error:
                raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
            if not same:
                raise StoreError(f"{path}: damaged, its manifest tells of another file")

    def is_whole(self, number: int) -> bool:
        """Whether a model can be made current."""
        try:
            self.check(number)
        except StoreError as error:
            log.warning("model %d is passed over: %s", number, error)
            return False
        return True

    def record(self) -> Record:
        return Record.read(self.folder / INDEX).at(self.number())

    def is_bad(self, weights: str) -> bool:
        return weights in Record.read(self.folder / INDEX).bad

    # Writing

    def export(
        self, flat: FlatModel, template: Template, origin: Origin, inputs: Tensor
    ) -> Manifest:
        """Write a model to ONNX, compare it with torch on these inputs, and make it current."""
        return self.publish(compared(flat, template, origin, inputs))

    def publish(self, draft: Draft) -> Manifest:
        """Write a model and make it current."""
        self.promote(self.add(draft))
        return draft.manifest

    def add(self, draft: Draft, spare: Iterable[int] = ()) -> int:
        """Write a model under the next number, and remove old ones, but for those to spare."""
        with self._changing():
            number = self._write(draft)
            self._note("added", number)
            self._prune(spare)
        return number

    def promote(self, number: int, reason: str = "") -> bool:
        """Make a model current; False if `current` is pinned to another."""
        with self._changing():
            record, manifest = self.record(), self.manifest(number)
            _refuse_bad(record, number, manifest)
            if record.pinned not in (None, number):
                self._note("held", number, f"current is pinned to {record.pinned}")
                return False
            shelf.point(self.folder, number)
            self._note("promoted", number, reason)
        return True

    def roll_back(self, reason: str = "", fits: Fits = _any) -> int | None:
        """Make the last model before the current one current; None if none is left that fits."""
        with self._changing():
            return self._roll_back(reason, fits)

    def mark_bad(self, number: int, reason: str, fits: Fits = _any) -> int | None:
        """Never promote a model again; if it is current, roll back. Where `current` leads then.

        The only model stays current until there is another: an app needs one.
        """
        with self._changing():
            record, weights = self.record(), self.manifest(number).weights
            bad = (*record.bad, *({weights} - {*record.bad}))
            pinned = None if record.pinned == number else record.pinned
            marked = msgspec.structs.replace(record, bad=bad, pinned=pinned)
            marked.noting("bad", number, reason).write(self._index)
            if self.number() == number:
                self._roll_back(reason, fits)
            return self.number()

    def pin(self, number: int) -> None:
        """Make a model current, and keep it so until it is unpinned or reported bad."""
        with self._changing():
            record = self.record()
            _refuse_bad(record, number, self.manifest(number))
            self.check(number)
            shelf.point(self.folder, number)
            pinned = msgspec.structs.replace(record, pinned=number)
            pinned.noting("pinned", number).at(number).write(self._index)

    def unpin(self) -> None:
        with self._changing():
            record = self.record()
            if record.pinned is not None:
                free = msgspec.structs.replace(record, pinned=None)
                free.noting("unpinned", record.pinned).write(self._index)

    def note(self, event: Event, number: int, reason: str = "") -> None:
        """Write into the history what changes nothing else."""
        with self._changing():
            self._note(event, number, reason)

    def answer(self, run: str, rollout: int, state: str) -> None:
        """Remember what this device says to a rollout."""
        answered = Answered(run, rollout, state)
        with self._changing():
            record = self.record()
            if record.answered != answered:
                msgspec.structs.replace(record, answered=answered).write(self._index)

    def reported(self) -> list[tuple[int, str]]:
        """Models that an app has newly reported bad, by their numbers, and why."""
        told = [number for number in self.numbers() if (self.path(number) / BAD).exists()]
        if not told:
            return []  # asked twice a second, and usually so
        kept, bad = self.manifests(), Record.read(self.folder / INDEX).bad
        reasons = {n: self._report(n, kept[n]) for n in told if n in kept}
        return [(n, r) for n, r in reasons.items() if r is not None and kept[n].weights not in bad]

    def heal(self) -> None:
        """Finish a rollback that a crash cut short: the model is marked, and still current."""
        if self._current_is_bad():
            with self._changing():
                if self._current_is_bad():
                    self._roll_back("it was reported bad", _any)

    # Files

    @property
    def _index(self) -> Path:
        return self.folder / INDEX

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One writer at a time; others wait, for each holds it for moments only."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise disk_error(self.folder, error) from error

    def _current_is_bad(self) -> bool:
        manifest = self.manifests().get(self.number() or 0)
        return manifest is not None and self.is_bad(manifest.weights)

    def _roll_back(self, reason: str, fits: Fits) -> int | None:
        record, kept = msgspec.structs.replace(self.record(), pinned=None), self.manifests()
        for number in reversed(record.trail[:-1]):
            usable = number in kept and _usable(kept[number], record, fits)
            if usable and self.is_whole(number):
                shelf.point(self.folder, number)
                record.noting("rolled back", number, reason).at(number).write(self._index)
                return number
        return None

    def _note(self, event: Event, number: int, reason: str = "") -> None:
        self.record().noting(event, number, reason).write(self._index)

    def _report(self, number: int, manifest: Manifest) -> str | None:
        """Why an app says that a model is bad; None if it does not, or means another file."""
        try:
            report = json.loads(read_bounded(self.path(number) / BAD, LARGEST_REPORT))
            fits = report["sha256"] == manifest.sha256
            return str(report.get("reason", ""))[:1000] if fits else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _write(self, draft: Draft) -> int:
        used = (entry.number for entry in self.record().history)
        number = max([*shelf.taken(self.folder), *used], default=0) + 1
        files = {**draft.files, MANIFEST: draft.manifest.encode()}
        shelf.place(self.folder, number, files)
        return number

    def _prune(self, spare: Iterable[int]) -> None:
        """Remove old models; an app that has just followed `current` still finds its files."""
        record = self.record()
        kept = {*self.numbers()[-self.keep :], *record.trail[-STEPS_BACK:], record.pinned, *spare}
        shelf.discard(self.folder, set(self.numbers()) - kept)
