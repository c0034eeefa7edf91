"""Images from a CSV file: a `label` column, and either a `path` column or the pixels themselves."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from fededge.data.images import read_images
from fededge.data.raw import Arrays, Raw, Request, Shape, check_bytes, numbering, reading
from fededge.errors import DataError

__all__ = ["read_csv"]

Row = tuple[int, str, list[str]]  # its number in the file, its label, its other cells


def read_csv(request: Request) -> Raw:
    """Read a CSV file.

    With a `path` column, each row names an image relative to the CSV file's folder; columns other
    than `path` and `label` are ignored. Without one, every column but `label` is a pixel from 0 to
    255, channel by channel, row by row; without a shape, one channel and a square are assumed.
    """
    path = request.needed("csv", "the CSV file")
    try:
        with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
            check_bytes(path.stat().st_size, path)
            names, x = _read_rows(csv.reader(file), path, request.shape)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a CSV file in UTF-8 ({error})") from error
    own = request.labels or _in_order(names)
    numbers = _numbers(names, own, path)
    return Raw(path, own, Arrays(x, np.asarray([numbers[name] for name in names], np.int64)))


def _read_rows(
    rows: Iterator[list[str]], path: Path, shape: Shape | None
) -> tuple[list[str], np.ndarray]:
    header = [name.strip() for name in next(rows, [])]
    if header.count("label") != 1:
        raise DataError(f"{path}: its first line must name the columns, one of them `label`")
    cells = _labelled(rows, path, header.index("label"), len(header))
    header.remove("label")
    if "path" in header:
        return _read_paths(cells, path, header.index("path"), shape)
    return _read_pixels(cells, path, _image_shape(len(header), path, shape))


def _labelled(rows: Iterator[list[str]], path: Path, label: int, columns: int) -> Iterator[Row]:
    for number, row in enumerate(rows, start=2):
        if not row:  # a blank line
            continue
        if len(row) != columns:
            raise DataError(f"{path}: row {number} has {len(row)} cells instead of {columns}")
        name = row.pop(label).strip()
        if not name:
            raise DataError(f"{path}: row {number} has no label")
        yield number, name, row


def _read_paths(
    rows: Iterator[Row], path: Path, column: int, shape: Shape | None
) -> tuple[list[str], np.ndarray]:
    names, files = [], []
    for number, name, cells in rows:
        relative = PurePosixPath(cells[column].strip())
        if not relative.name or relative.is_absolute() or ".." in relative.parts:
            raise DataError(
                f"{path}: row {number}: the path {cells[column]!r} must lead to an image below "
                "the file's own folder"
            )
        names.append(name)
        files.append(path.parent / relative)
    _check_some(names, path)
    return names, read_images(files, shape)


def _read_pixels(rows: Iterator[Row], path: Path, shape: Shape) -> tuple[list[str], np.ndarray]:
    names, pixels = [], bytearray()
    for number, name, cells in rows:
        names.append(name)
        try:
            pixels += bytes(map(int, cells))  # bytes() itself insists on 0..255
        except ValueError as error:
            raise DataError(
                f"{path}: row {number}: pixels must be whole numbers from 0 to 255"
            ) from error
    _check_some(names, path)
    return names, np.frombuffer(pixels, np.uint8).reshape(-1, *shape)


def _check_some(names: Sequence[str], path: Path) -> None:
    if not names:
        raise DataError(f"{path}: it has no rows below its header")


def _image_shape(pixels: int, path: Path, shape: Shape | None) -> Shape:
    side = math.isqrt(pixels)
    wanted = shape or (1, side, side)
    if pixels == 0 or math.prod(wanted) != pixels:
        raise DataError(
            f"{path}: it has {pixels} pixel columns, which do not make an image of shape "
            f"{list(wanted)}; set model.shape, or add a `path` column"
        )
    return wanted


def _in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Each name once: numbers by value, other names by alphabet."""
    if all(name.isdecimal() for name in names):
        return tuple(sorted(set(names), key=lambda name: (int(name), name)))
    return tuple(sorted(set(names)))


def _numbers(names: Sequence[str], labels: tuple[str, ...], path: Path) -> dict[str, int]:
    """The class of each text: its name or, if no class is named by a number, its number from 0."""
    by_number = {str(number): number for number in range(len(labels))}
    if any(label.isdecimal() for label in labels):
        by_number = {}
    others = [name for name in _in_order(names) if name not in by_number]
    return by_number | numbering(others, labels, path)
