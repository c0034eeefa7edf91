"""The folder of a device's exported models, and the link `current` that apps follow."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import Tensor

from fededge.errors import ExportError
from fededge.export.manifest import Facts, Manifest, Origin
from fededge.export.parity import Parity, check
from fededge.export.template import Template
from fededge.files import disk_error, fsync_folder, replace_file
from fededge.flat import FlatModel

__all__ = ["Models"]

MODEL, MANIFEST, CURRENT = "model.onnx", "manifest.json", "current"


@dataclass(frozen=True)
class Models:
    """`<folder>/<n>/model.onnx` and `manifest.json`, and `<folder>/current` -> `<n>`.

    One process writes. Whatever moment it dies at, `current` is absent (before the first model)
    or leads to a complete, compared model.
    """

    folder: Path
    keep: int = 3

    def export(
        self, flat: FlatModel, template: Template, origin: Origin, images: Tensor
    ) -> Manifest:
        """Write a model to ONNX, compare it with torch on these images, and make it current."""
        facts = Facts.of(origin, template.spec, template.layout)
        model = template.fill(flat.vector, facts.metadata())
        parity = check(model, flat.module, template.spec, images)
        return self.publish(model, parity, facts)

    def publish(self, model: bytes, parity: Parity, facts: Facts) -> Manifest:
        """Make these bytes current; the comparison must have been made with exactly them."""
        digest = hashlib.sha256(model).hexdigest()
        if parity.sha256 != digest:
            raise ExportError("this model is not the one that was compared: it is not published")
        manifest = Manifest(
            **msgspec.structs.asdict(facts),
            sha256=digest,
            size=len(model),
            compared=parity.samples,
            difference=parity.difference,
        )
        try:
            self._swap(self._write(model, manifest))
            self._prune()
        except OSError as error:
            raise disk_error(self.folder, error) from error
        return manifest

    def current(self) -> Manifest | None:
        """The manifest of the model that apps use now; None before the first."""
        folder = self.folder / CURRENT
        return Manifest.read(folder / MANIFEST) if folder.is_symlink() else None

    def _write(self, model: bytes, manifest: Manifest) -> str:
        """Write both files into a new numbered folder, which appears complete or not at all."""
        draft = self.folder / ".new"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            replace_file(draft / MODEL, model)
            replace_file(draft / MANIFEST, manifest.encode())
            number = str(max(self._numbers(), default=0) + 1)
            draft.rename(self.folder / number)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        fsync_folder(self.folder)
        return number

    def _swap(self, number: str) -> None:
        link = self.folder / ".current.new"
        link.unlink(missing_ok=True)
        link.symlink_to(number)
        os.replace(link, self.folder / CURRENT)
        fsync_folder(self.folder)

    def _prune(self) -> None:
        """Remove old models; an app that has just followed `current` still finds its files."""
        for number in sorted(self._numbers())[: -self.keep]:
            # Renamed first, so that no numbered folder is ever half there.
            old = self.folder / ".old"
            shutil.rmtree(old, ignore_errors=True)
            (self.folder / str(number)).rename(old)
            shutil.rmtree(old)

    def _numbers(self) -> list[int]:
        return [int(path.name) for path in self.folder.iterdir() if path.name.isdecimal()]
