"""Tiny-ImageNet in its official layout: a folder for each WordNet id, and a list for validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fededge.data.formats.images import folders, image_files, read_images
from fededge.data.raw import Arrays, Raw, Request, numbering, reading
from fededge.errors import DataError

__all__ = ["read_tiny_imagenet"]

SHAPE = (3, 64, 64)
MOST_LIST_BYTES = 16 * 2**20  # the official words.txt has 2.6 MB

Found = list[tuple[Path, str]]  # an image, and the WordNet id of its class


def read_tiny_imagenet(request: Request) -> Raw:
    """Read `train/<id>/images`, and as test part `val/images` with `val/val_annotations.txt`.

    The official test part has no labels. A class has its first name in `words.txt`, or its id if
    there is none or if two classes share the name; classes are sorted by id.
    """
    root = request.needed("tiny-imagenet", "the folder that holds its train and val")
    folder = root / "tiny-imagenet-200" if (root / "tiny-imagenet-200").is_dir() else root
    train, val = _training_images(folder / "train"), _validation_images(folder / "val")
    names = _names(folder, train)
    for path, wnid in (*train, *val):
        if wnid not in names:
            raise DataError(f"{path}: its class {wnid} is not one of the {len(names)} classes")
    labels = request.labels or tuple(names.values())
    present = sorted({wnid for _, wnid in (*train, *val)})
    numbers = numbering([names[wnid] for wnid in present], labels, folder)

    def read(found: Found) -> Arrays:
        x = read_images([p for p, _ in found], request.shape or SHAPE, request.most_bytes)
        return Arrays(x, np.asarray([numbers[names[wnid]] for _, wnid in found], np.int64))

    return Raw(folder, labels, read(train), read(val))


def _training_images(folder: Path) -> Found:
    found = [(p, c.name) for c in folders(folder) for p in image_files(c / "images")]
    if not found:
        raise DataError(f"{folder}: it must hold a folder <WordNet id>/images for each class")
    return found


def _validation_images(folder: Path) -> Found:
    listed = folder / "val_annotations.txt"
    classes = {cells[0]: cells[1] for cells in _table(listed) if len(cells) > 1}  # then a box
    paths = image_files(folder / "images")
    for path in paths:
        if path.name not in classes:
            raise DataError(f"{path}: {listed.name} does not say its class")
    if not paths:
        raise DataError(f"{folder}: it must hold a folder of images, `images`")
    return [(path, classes[path.name]) for path in paths]


def _names(folder: Path, train: Found) -> dict[str, str]:
    """Return each class's name by id, from the official list: a device may lack classes."""
    listed = folder / "wnids.txt"
    wnids = [cells[0] for cells in _table(listed)] if listed.exists() else [w for _, w in train]
    words = folder / "words.txt"
    rows = _table(words) if words.exists() else []
    first = {cells[0]: cells[1].partition(",")[0].strip() for cells in rows if len(cells) > 1}
    names = {wnid: first.get(wnid) or wnid for wnid in sorted(set(wnids))}
    times = Counter(names.values())
    return {wnid: wnid if times[name] > 1 else name for wnid, name in names.items()}


def _table(path: Path) -> Sequence[list[str]]:
    """Return the lines of a file, split at tabs; without blank lines."""
    with reading(path):
        if path.stat().st_size > MOST_LIST_BYTES:
            raise DataError(f"{path}: larger than the {MOST_LIST_BYTES:,} bytes that are allowed")
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [line.strip().split("\t") for line in lines if line.strip()]
