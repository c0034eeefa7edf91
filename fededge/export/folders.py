"""The numbered folders of a device's models, and the link `current`; every change is atomic."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from fededge.errors import StoreError
from fededge.predictor.manifest import CURRENT
from fededge.storage.files import fsync_folder, replace_file

__all__ = ["model_numbers", "remove", "set_current", "used_numbers", "write_folder"]

log = logging.getLogger(__name__)

OLD = ".old-"


def used_numbers(folder: Path) -> list[int]:
    """Return the numbers that are names in this folder, of models or anything else."""
    if not folder.is_dir():
        return []
    names = (path.name for path in folder.iterdir())
    found = {name: int(name) for name in names if name.isascii() and name.isdecimal()}
    return sorted(number for name, number in found.items() if str(number) == name)


def model_numbers(folder: Path) -> list[int]:
    """Return the models' numbers, oldest first; files and links of such names are not models."""
    paths = {number: folder / str(number) for number in used_numbers(folder)}
    return [n for n, path in paths.items() if path.is_dir() and not path.is_symlink()]


def write_folder(folder: Path, number: int, files: Mapping[str, bytes]) -> None:
    """Write all files into a new numbered folder, atomically."""
    new = folder / ".new"
    _clear(new)
    try:
        for name, data in files.items():
            replace_file(new / name, data)
        new.rename(folder / str(number))
    finally:
        shutil.rmtree(new, ignore_errors=True)
    fsync_folder(folder)


def set_current(folder: Path, number: int) -> None:
    """Make `current` a link to this model, atomically."""
    link, current = folder / ".current.new", folder / CURRENT
    if current.is_dir() and not current.is_symlink():
        raise StoreError(
            f"{current} must be a link to the current model, but it is a folder (a copy that "
            "followed the link?); remove it"
        )
    _clear(link)
    link.symlink_to(str(number))
    os.replace(link, current)
    fsync_folder(folder)


def remove(folder: Path, old: Iterable[int]) -> None:
    """Remove models; a failure only logs a warning, for new models must still reach apps."""
    for number in old:
        # Renamed first, so that a numbered folder is never incomplete.
        (folder / str(number)).rename(folder / f"{OLD}{number}")
    for path in folder.glob(f"{OLD}*"):
        try:
            _clear(path)
        except OSError as error:
            log.warning("%s: an old model cannot be removed (%s)", path, error.strerror)


def _clear(path: Path) -> None:
    """Remove a file, a folder, or a link without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
