"""Image files: one, a list of them, or a folder with a sub-folder for each class."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fededge.data.raw import (
    Arrays,
    Naming,
    Raw,
    Request,
    Shape,
    check_bytes,
    numbering,
    reading,
)
from fededge.errors import DataError
from fededge.inputs.images import (
    FORMATS,
    GREY,
    SUFFIXES,
    check_header,
    fitted,
    pillow,
    planes,
    upright,
)

__all__ = ["class_folders", "folders", "image_files", "read_folder", "read_images"]

log = logging.getLogger("data")

MOST_FILE_BYTES = 256 * 2**20

MOST_NAMED = 20
"""Unreadable images that the log names, of one folder."""


def read_folder(request: Request) -> Raw:
    """Read `root/<class>/<image>`, or `root/train/…` and `root/test/…` if there is nothing else."""
    folder = request.needed("folder", "the folder with one sub-folder for each class")
    parts = {path.name: path for path in folders(folder)}
    if set(parts) != {"train", "test"}:
        parts = {"train": folder}
    found = [path for part in parts.values() for path in class_folders(part, request.naming)]
    names = sorted({request.naming.label(path.name) for path in found})
    if not names:
        raise DataError(
            f"{folder}: it must hold one sub-folder of images for each class",
            "the device's data folder is empty: it has no sub-folder of images",
        )
    numbers = numbering(names, request.labels, folder)
    read = {name: _read_classes(part, request, numbers) for name, part in parts.items()}
    arrays = {name: arrays for name, (arrays, _) in read.items()}
    skipped = sum(broken for _, broken in read.values())
    labels = request.labels or tuple(names)
    return Raw(folder, labels, arrays["train"], arrays.get("test"), skipped=skipped)


def read_images(
    paths: Sequence[Path], shape: Shape | None, most_bytes: int | None = None
) -> np.ndarray:
    """Read pixels [N, C, H, W], fitted to the shape; without one, all images must be alike."""
    pixels, broken = _read_readable(paths, shape, most_bytes)
    for error in broken.values():
        raise error
    return pixels


def _read_readable(
    paths: Sequence[Path], shape: Shape | None, most_bytes: int | None
) -> tuple[np.ndarray, dict[int, DataError]]:
    """The pixels of the images that can be read, and by their index what is wrong with others."""
    _pillow()
    if shape is not None:
        check_bytes(len(paths) * math.prod(shape), paths[0].parent, most=most_bytes)
    if shape is not None and shape[0] not in (1, 3):
        raise DataError(f"image files have 1 channel (grey) or 3 (RGB), but {shape[0]} are wanted")
    x, count = np.empty(0, np.uint8), 0
    broken: dict[int, DataError] = {}
    for index, path in enumerate(paths):
        try:
            image = _read_image(path, shape)
        except DataError as error:
            broken[index] = error
            continue
        if not count:
            first = path
            check_bytes(len(paths) * image.size, path.parent, most=most_bytes)
            x = np.empty((len(paths), *image.shape), np.uint8)
        if image.shape != x.shape[1:]:
            raise DataError(
                f"{path}: its shape {image.shape} differs from {x.shape[1:]} of {first.name}; "
                "set model.shape to have all images fitted to it"
            )
        x[count] = image
        count += 1
    if not count:
        raise broken[0]
    return x[:count], broken


def folders(folder: Path) -> list[Path]:
    with reading(folder):
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def class_folders(folder: Path, naming: Naming) -> list[Path]:
    return [path for path in folders(folder) if path.name not in naming.ignore]


def _read_classes(folder: Path, request: Request, numbers: dict[str, int]) -> tuple[Arrays, int]:
    """The images of all classes, and how many were left out because they cannot be read."""
    paths: list[Path] = []
    y: list[int] = []
    for place in class_folders(folder, request.naming):
        found = image_files(place)
        paths += found
        y += [numbers[request.naming.label(place.name)]] * len(found)
    if not paths:
        raise DataError(
            f"{folder}: none of its class folders holds an image ({_suffixes()})",
            "the device's data folder is empty: no folder of a class holds an image",
        )
    x, broken = _read_readable(paths, request.shape, request.most_bytes)
    _name_broken(folder, broken)
    return Arrays(x, np.delete(np.asarray(y, np.int64), [*broken])), len(broken)


def _name_broken(folder: Path, broken: dict[int, DataError]) -> None:
    for error in [*broken.values()][:MOST_NAMED]:
        log.warning("%s; it is left out", error, extra={"event": "image-skipped"})
    if len(broken) > MOST_NAMED:
        text = "%s: %d more images cannot be read and are left out"
        log.warning(text, folder, len(broken) - MOST_NAMED, extra={"event": "image-skipped"})


def image_files(folder: Path) -> list[Path]:
    if not folder.is_dir():  # a class of the training part may be absent from the test part
        return []
    nested = folders(folder)
    if nested:
        raise DataError(f"{nested[0]}: a class folder holds images only, no further folders")
    with reading(folder):
        return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)


def _suffixes() -> str:
    return ", ".join(SUFFIXES)


def _read_image(path: Path, shape: Shape | None) -> np.ndarray:
    pil = _pillow()
    with reading(path):
        if path.stat().st_size > MOST_FILE_BYTES:
            raise DataError(f"{path}: larger than the {MOST_FILE_BYTES:,} bytes that are allowed")
    try:
        with pil.Image.open(path, formats=FORMATS) as image:
            check_header(image, path)
            if shape is None:
                return planes(upright(image, 1 if image.mode in GREY else 3))
            return planes(fitted(upright(image, shape[0]), (shape[2], shape[1])))
    except (
        pil.Image.DecompressionBombError,
        pil.Image.DecompressionBombWarning,
    ) as error:
        raise DataError(f"{path}: the image is too large; scale it down") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: not a readable image; replace or remove it") from error


def _pillow() -> Any:
    try:
        return pillow()
    except ImportError as error:
        raise DataError(
            f"reading image files needs Pillow, which cannot be imported ({error}); install "
            "fededge[vision]"
        ) from error
