"""The numbered folders of a device's models, and the link: each appears and goes as a whole."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from fededge.errors import StoreError
from fededge.predictor.manifest import CURRENT
from fededge.storage.files import fsync_folder, replace_file

__all__ = ["discard", "numbers", "place", "point", "taken"]

log = logging.getLogger(__name__)

OLD = ".old-"


def taken(folder: Path) -> list[int]:
    """The numbers that are names in this folder, of models or of anything else."""
    if not folder.is_dir():
        return []
    names = (path.name for path in folder.iterdir())
    found = {name: int(name) for name in names if name.isascii() and name.isdecimal()}
    return sorted(number for name, number in found.items() if str(number) == name)


def numbers(folder: Path) -> list[int]:
    """The models, oldest first; a file or a link with such a name was put there by others."""
    paths = {number: folder / str(number) for number in taken(folder)}
    return [n for n, path in paths.items() if path.is_dir() and not path.is_symlink()]


def place(folder: Path, number: int, files: Mapping[str, bytes]) -> None:
    """Write all files into a new numbered folder, which appears complete or not at all."""
    new = folder / ".new"
    _clear(new)
    try:
        for name, data in files.items():
            replace_file(new / name, data)
        new.rename(folder / str(number))
    finally:
        shutil.rmtree(new, ignore_errors=True)
    fsync_folder(folder)


def point(folder: Path, number: int) -> None:
    """Let `current` lead to this model: the link is the old one or the new one at any moment."""
    link, current = folder / ".current.new", folder / CURRENT
    if current.is_dir() and not current.is_symlink():
        raise StoreError(
            f"{current}: this is a folder (a copy that followed the link?), where the link to the "
            "current model belongs; remove it"
        )
    _clear(link)
    link.symlink_to(str(number))
    os.replace(link, current)
    fsync_folder(folder)


def discard(folder: Path, old: Iterable[int]) -> None:
    """Remove models; one that cannot be removed keeps no new one from its apps."""
    for number in old:
        # Renamed first, so that no numbered folder is ever half there.
        (folder / str(number)).rename(folder / f"{OLD}{number}")
    for path in folder.glob(f"{OLD}*"):
        try:
            _clear(path)
        except OSError as error:
            log.warning("%s: an old model cannot be removed (%s)", path, error.strerror)


def _clear(path: Path) -> None:
    """Remove what is there, a folder or another thing; of a link, never what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
