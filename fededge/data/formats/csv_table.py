"""A CSV file: a `label` column, and a column of texts, of paths to images, or all the pixels."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import numpy as np

from fededge.data.formats.images import read_images
from fededge.data.raw import (
    Arrays,
    Raw,
    Request,
    Shape,
    Tokens,
    check_bytes,
    numbering,
    reading,
)
from fededge.errors import DataError

__all__ = ["open_rows", "read_csv"]

Row = tuple[int, str, list[str]]  # its number in the file, its label, its other cells


def read_csv(request: Request) -> Raw:
    """Read a CSV file.

    With a `path` column, each row names an image relative to the CSV file's folder; with a `text`
    column, it holds a text. Columns other than these and `label` are ignored. Without both, every
    column but `label` is a pixel from 0 to 255, channel by channel, row by row; without a shape,
    the image is square with one channel.
    """
    path = request.needed("csv", "the CSV file")
    with open_rows(path) as rows:
        header = [name.strip() for name in next(rows, [])]
        tokens = _tokens(header, request, path)
        named, x = _read_rows(rows, path, header, request, tokens)
    names = [request.naming.label(name) for name in named]
    own = request.labels or _in_order(names)
    numbers = _numbers(names, own, path)
    y = np.asarray([numbers[name] for name in names], np.int64)
    return Raw(path, own, Arrays(x, y), vocabulary=tokens.vocabulary if tokens else 0)


@contextmanager
def open_rows(path: Path) -> Iterator[Iterator[list[str]]]:
    """Open a CSV file's rows; turn errors of reading and decoding into a DataError."""
    try:
        with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
            check_bytes(path.stat().st_size, path)
            yield csv.reader(file)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a CSV file in UTF-8 ({error})") from error


def _tokens(header: Sequence[str], request: Request, path: Path) -> Tokens | None:
    """Return how to tokenise the texts; None if the file holds images."""
    if request.tokens is not None and "text" not in header:
        raise DataError(f"{path}: this federation trains on texts: a column `text` is needed")
    if request.tokens is None and request.shape is None and "path" not in header:
        return Tokens() if "text" in header else None
    return request.tokens


def _read_rows(
    rows: Iterator[list[str]],
    path: Path,
    header: list[str],
    request: Request,
    tokens: Tokens | None,
) -> tuple[list[str], np.ndarray]:
    if header.count("label") != 1:
        raise DataError(f"{path}: its first line must name the columns, one of them `label`")
    cells = _labelled(rows, path, header.index("label"), len(header))
    header.remove("label")
    if tokens is not None:
        return _read_texts(cells, path, header.index("text"), tokens)
    if "path" in header:
        return _read_paths(cells, path, header.index("path"), request)
    return _read_pixels(cells, path, _image_shape(len(header), path, request.shape))


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


def _read_texts(
    rows: Iterator[Row], path: Path, column: int, tokens: Tokens
) -> tuple[list[str], np.ndarray]:
    names, texts = [], []
    for _, name, cells in rows:
        names.append(name)
        texts.append(cells[column])
    _check_some(names, path)
    return names, tokens.of(texts, path)


def _read_paths(
    rows: Iterator[Row], path: Path, column: int, request: Request
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
    return names, read_images(files, request.shape, request.most_bytes)


def _read_pixels(rows: Iterator[Row], path: Path, shape: Shape) -> tuple[list[str], np.ndarray]:
    names, pixels = [], bytearray()
    for number, name, cells in rows:
        names.append(name)
        try:
            pixels += bytes(map(int, cells))  # bytes() refuses values outside 0..255
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
    """Return each name once: numbers sorted by value, other names alphabetically."""
    if all(name.isdecimal() for name in names):
        return tuple(sorted(set(names), key=lambda name: (int(name), name)))
    return tuple(sorted(set(names)))


def _numbers(names: Sequence[str], labels: tuple[str, ...], path: Path) -> dict[str, int]:
    """Return the class number of each label; a label may be a number unless a class is named so."""
    by_number = {str(number): number for number in range(len(labels))}
    if any(label.isdecimal() for label in labels):
        by_number = {}
    others = [name for name in _in_order(names) if name not in by_number]
    return by_number | numbering(others, labels, path)
