"""Arrays from an npz file: `x` and `y`, and `x_test` and `y_test` when it has a test part."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from fededge.data.raw import Arrays, Raw, Request, Shape, check_bytes, reading
from fededge.errors import DataError

__all__ = ["read_npz"]

MOST_CLASSES = 100_000
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(request: Request) -> Raw:
    """Read an npz file; without labels, the classes are called 0, 1, … up to the largest in y."""
    path = request.needed("npz", "the npz file")
    try:
        with reading(path), zipfile.ZipFile(path) as archive:
            train = _read_pair(archive, path, "x", "y", request.shape)
            both = {"x_test.npy", "y_test.npy"} & set(archive.namelist())
            test = _read_pair(archive, path, "x_test", "y_test", request.shape) if both else None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(f"{path}: not a readable npz file ({error})") from error
    return Raw(path, request.labels or _numbers(path, train, test), train, test)


def _numbers(path: Path, train: Arrays, test: Arrays | None) -> tuple[str, ...]:
    largest = max(int(part.y.max()) for part in (train, test) if part is not None)
    if largest >= MOST_CLASSES:
        raise DataError(f"{path}: label {largest} is above the {MOST_CLASSES:,} classes allowed")
    return tuple(str(number) for number in range(largest + 1))


def _read_pair(
    archive: zipfile.ZipFile, path: Path, images: str, classes: str, shape: Shape | None
) -> Arrays:
    x = _read_array(archive, path, images)
    y = _read_array(archive, path, classes)
    if x.dtype != np.uint8:
        raise DataError(f"{path}: {images} is {x.dtype}, but pixels must be uint8 from 0 to 255")
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise DataError(
            f"{path}: {classes} must be one row of whole numbers, got {y.dtype} {list(y.shape)}"
        )
    if len(y) == 0 or x.shape[:1] != y.shape:
        raise DataError(
            f"{path}: {images} has shape {list(x.shape)}, but {classes} has {len(y)} labels"
        )
    return Arrays(_channels_first(x, shape, f"{path}: {images}"), y.astype(np.int64))


def _read_array(archive: zipfile.ZipFile, path: Path, name: str) -> np.ndarray:
    """Read one array, after checking that its header promises no more than the file holds."""
    if f"{name}.npy" not in archive.namelist():
        found = ", ".join(sorted(archive.namelist())[:10]) or "nothing"
        raise DataError(f"{path}: there is no array `{name}` in it (it holds {found})")
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path}: it is not compressed as numpy does; use np.savez")
    check_bytes(member.file_size, path)
    try:
        with archive.open(member) as stream:
            shape, _, dtype = HEADERS[np.lib.format.read_magic(stream)](stream)
            promised = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or promised > member.file_size:
            raise ValueError(f"{dtype} {list(shape)} in {member.file_size} bytes")
        with archive.open(member) as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)
    # Numpy's header reader raises these on damaged files, as fuzzing showed.
    except (KeyError, MemoryError, SyntaxError, ValueError, tokenize.TokenError) as error:
        raise DataError(f"{path}: array `{name}` cannot be read ({error})") from error


def _channels_first(x: np.ndarray, shape: Shape | None, where: str) -> np.ndarray:
    """Return [N, H, W], [N, C, H, W] or [N, H, W, C] as [N, C, H, W]; `shape` resolves doubts."""
    if x.ndim == 3:
        return np.ascontiguousarray(x[:, None])
    if x.ndim == 4:
        first, last = x.shape[1:], (x.shape[3], *x.shape[1:3])
        if first == shape or (shape is None and first[0] <= 4):
            return np.ascontiguousarray(x)
        if last == shape or (shape is None and last[0] <= 4):
            return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    raise DataError(
        f"{where} has shape {list(x.shape)}, which is neither [N, H, W] nor [N, C, H, W] nor "
        f"[N, H, W, C]{f' with images {list(shape)}' if shape else ''}"
    )
