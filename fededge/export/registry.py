"""The registry of a device's exported models, with the link `current` that apps follow."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fededge.errors import StoreError
from fededge.export import folders
from fededge.export.manifest import ModelManifest, Origin
from fededge.export.registry_index import Event, RegistryIndex, RolloutAnswer
from fededge.predictor.manifest import BAD, CURRENT, MANIFEST, MODEL
from fededge.storage.files import disk_error, read_bounded, stream_sha256

if TYPE_CHECKING:
    from torch import Tensor

    from fededge.export.candidate import Candidate
    from fededge.export.template import Template
    from fededge.flat import FlatModel

__all__ = ["ModelRegistry"]

log = logging.getLogger(__name__)

INDEX = "index.json"
LARGEST_REPORT = 1 << 16
# The current model, and the one that a rollback leads to.
STEPS_BACK = 2

Fits = Callable[[ModelManifest], bool]


def _any(_: ModelManifest) -> bool:
    return True


def _usable(manifest: ModelManifest, index: RegistryIndex, fits: Fits) -> bool:
    return manifest.weights not in index.bad and fits(manifest)


def _refuse_bad(index: RegistryIndex, number: int, manifest: ModelManifest) -> None:
    if manifest.weights in index.bad:
        raise StoreError(f"model {number} was reported bad and cannot become current again")


@dataclass(frozen=True)
class ModelRegistry:
    """`<folder>/<n>/model.onnx`, its variants and `manifest.json`; `<folder>/current` -> `<n>`.

    The agent and `fededge export` may write at the same time, from any thread: each change takes a
    lock. If a writer dies at any moment, `current` is absent (before the first model) or links to
    a complete, compared model.
    """

    folder: Path
    keep: int = 3

    # Queries

    def current(self) -> ModelManifest | None:
        """Return the manifest of the current model, which apps use; None before the first."""
        number = self.number()
        return None if number is None else self.manifest(number)

    def number(self) -> int | None:
        """Return the number of the current model; None if there is none."""
        try:
            return int((self.folder / CURRENT).readlink().name)
        except (OSError, ValueError):
            return None

    def manifest(self, number: int) -> ModelManifest:
        if not self.path(number).is_dir():
            known = ", ".join(map(str, self.numbers())) or "none"
            raise StoreError(f"{self.folder} has no model {number}; it has: {known}")
        return ModelManifest.read(self.path(number) / MANIFEST)

    def path(self, number: int) -> Path:
        return self.folder / str(number)

    def numbers(self) -> list[int]:
        """Return the models' numbers, oldest first."""
        return folders.model_numbers(self.folder)

    def manifests(self) -> dict[int, ModelManifest]:
        """Return the manifests by number, oldest first, without those of damaged models."""
        found = {}
        for number in self.numbers():
            with contextlib.suppress(StoreError):
                found[number] = self.manifest(number)
        return found

    def check(self, number: int) -> None:
        """Compare a model's files with the hashes in its manifest."""
        manifest = self.manifest(number)
        hashes = {MODEL: manifest.sha256} | {v.file: v.sha256 for v in manifest.variants.values()}
        for name, sha256 in hashes.items():
            path = self.path(number) / name
            try:
                if path.is_fifo():  # opening one blocks, and this may run under the lock
                    raise StoreError(f"{path}: damaged, it is a pipe")
                with path.open("rb") as file:
                    same = stream_sha256(file) == sha256
            except OSError as error:
                raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
            if not same:
                raise StoreError(f"{path}: damaged, its SHA-256 is not the manifest's")

    def is_intact(self, number: int) -> bool:
        """Return True if a model's files are intact; log a warning if not."""
        try:
            self.check(number)
        except StoreError as error:
            log.warning("model %d is skipped: %s", number, error)
            return False
        return True

    def index(self) -> RegistryIndex:
        return RegistryIndex.read(self.folder / INDEX).with_current(self.number())

    def is_bad(self, weights: str) -> bool:
        return weights in RegistryIndex.read(self.folder / INDEX).bad

    # Changes

    def export(
        self, flat: FlatModel, template: Template, origin: Origin, inputs: Tensor
    ) -> ModelManifest:
        """Export a model to ONNX, check it against torch on these inputs, and make it current."""
        from fededge.export.candidate import make_candidate  # needs torch

        return self.publish(make_candidate(flat, template, origin, inputs))

    def publish(self, candidate: Candidate) -> ModelManifest:
        """Write a model and make it current."""
        self.promote(self.add(candidate))
        return candidate.manifest

    def add(self, candidate: Candidate, spare: Iterable[int] = ()) -> int:
        """Write a model under the next number; remove old ones except those in `spare`."""
        with self._locked():
            number = self._write(candidate)
            self._note("added", number)
            self._prune(spare)
        return number

    def promote(self, number: int, reason: str = "") -> bool:
        """Make a model current; False if `current` is pinned to another."""
        with self._locked():
            index, manifest = self.index(), self.manifest(number)
            _refuse_bad(index, number, manifest)
            if index.pinned not in (None, number):
                self._note("held", number, f"current is pinned to {index.pinned}")
                return False
            folders.set_current(self.folder, number)
            self._note("promoted", number, reason)
        return True

    def roll_back(self, reason: str = "", fits: Fits = _any) -> int | None:
        """Make the previous usable model current; return its number, or None if there is none."""
        with self._locked():
            return self._roll_back(reason, fits)

    def mark_bad(self, number: int, reason: str, fits: Fits = _any) -> int | None:
        """Mark a model as bad: it is never promoted again. If it is current, roll back.

        The only model stays current until there is another: an app needs one. Returns the number
        of the current model.
        """
        with self._locked():
            index, weights = self.index(), self.manifest(number).weights
            bad = (*index.bad, *({weights} - {*index.bad}))
            pinned = None if index.pinned == number else index.pinned
            marked = msgspec.structs.replace(index, bad=bad, pinned=pinned)
            marked.with_entry("bad", number, reason).write(self._index_path)
            if self.number() == number:
                self._roll_back(reason, fits)
            return self.number()

    def pin(self, number: int) -> None:
        """Make a model current until it is unpinned or reported bad."""
        with self._locked():
            index = self.index()
            _refuse_bad(index, number, self.manifest(number))
            self.check(number)
            folders.set_current(self.folder, number)
            pinned = msgspec.structs.replace(index, pinned=number)
            pinned.with_entry("pinned", number).with_current(number).write(self._index_path)

    def unpin(self) -> None:
        with self._locked():
            index = self.index()
            if index.pinned is not None:
                free = msgspec.structs.replace(index, pinned=None)
                free.with_entry("unpinned", index.pinned).write(self._index_path)

    def note(self, event: Event, number: int, reason: str = "") -> None:
        """Add an entry to the history without another change."""
        with self._locked():
            self._note(event, number, reason)

    def answer(self, run: str, rollout: int, state: str) -> None:
        """Save this device's answer to a rollout."""
        answered = RolloutAnswer(run, rollout, state)
        with self._locked():
            index = self.index()
            if index.answered != answered:
                msgspec.structs.replace(index, answered=answered).write(self._index_path)

    def reported(self) -> list[tuple[int, str]]:
        """Return the models that an app has newly reported bad: number and reason."""
        reported = [number for number in self.numbers() if (self.path(number) / BAD).exists()]
        if not reported:
            return []  # the usual case: this is polled twice a second
        kept, bad = self.manifests(), RegistryIndex.read(self.folder / INDEX).bad
        reasons = {n: self._report(n, kept[n]) for n in reported if n in kept}
        return [(n, r) for n, r in reasons.items() if r is not None and kept[n].weights not in bad]

    def finish_rollback(self) -> None:
        """Finish a rollback that a crash interrupted: the model is marked bad but still current."""
        if self._current_is_bad():
            with self._locked():
                if self._current_is_bad():
                    self._roll_back("it was reported bad", _any)

    # Files

    @property
    def _index_path(self) -> Path:
        return self.folder / INDEX

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the folder: one writer at a time."""
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
        index, kept = msgspec.structs.replace(self.index(), pinned=None), self.manifests()
        for number in reversed(index.trail[:-1]):
            usable = number in kept and _usable(kept[number], index, fits)
            if usable and self.is_intact(number):
                folders.set_current(self.folder, number)
                index.with_entry("rolled back", number, reason).with_current(number).write(
                    self._index_path
                )
                return number
        return None

    def _note(self, event: Event, number: int, reason: str = "") -> None:
        self.index().with_entry(event, number, reason).write(self._index_path)

    def _report(self, number: int, manifest: ModelManifest) -> str | None:
        """Return an app's reason why a model is bad; None if its report is of another file."""
        try:
            report = json.loads(read_bounded(self.path(number) / BAD, LARGEST_REPORT))
            fits = report["sha256"] == manifest.sha256
            return str(report.get("reason", ""))[:1000] if fits else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _write(self, candidate: Candidate) -> int:
        used = (entry.number for entry in self.index().history)
        number = max([*folders.used_numbers(self.folder), *used], default=0) + 1
        files = {**candidate.files, MANIFEST: candidate.manifest.encode()}
        folders.write_folder(self.folder, number, files)
        return number

    def _prune(self, spare: Iterable[int]) -> None:
        """Remove old models, but keep the previous one for apps that have just read `current`."""
        index = self.index()
        kept = {*self.numbers()[-self.keep :], *index.trail[-STEPS_BACK:], index.pinned, *spare}
        folders.remove(self.folder, set(self.numbers()) - kept)
