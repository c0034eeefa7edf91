"""The idx files of MNIST and Fashion-MNIST, gzipped or not, read without torchvision."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np

from fededge.data.raw import Arrays, Raw, Request, check_bytes, reading
from fededge.errors import ConfigError, DataError

__all__ = ["DEBIAN", "FASHION", "read_fashion_mnist", "read_idx", "read_mnist"]

# The path of Debian's and Ubuntu's package dataset-fashion-mnist.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
DIGITS = tuple("0123456789")


def read_fashion_mnist(request: Request) -> Raw:
    if request.root is None and not DEBIAN.is_dir():
        raise ConfigError(
            "data source 'fashion-mnist' needs `root`, the folder of its idx files (on the command "
            "line, --data fashion-mnist:PATH), or Debian's package dataset-fashion-mnist, which "
            f"puts them into {DEBIAN}"
        )
    return _read_all(request.root or DEBIAN, "FashionMNIST", FASHION)


def read_mnist(request: Request) -> Raw:
    return _read_all(request.needed("mnist", "the folder of its idx files"), "MNIST", DIGITS)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of bytes, and no more bytes than its header announces."""
    with reading(path), path.open("rb") as file:
        # GzipFile is a reader of bytes like the file itself, but typeshed does not call it IO.
        stream = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
        try:
            return _parse(stream, path, dimensions)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: damaged gzip file ({error}); copy it again") from error


def _parse(stream: IO[bytes], path: Path, dimensions: int) -> np.ndarray:
    magic, sizes = stream.read(4), stream.read(4 * dimensions)
    if magic != bytes((0, 0, 8, dimensions)) or len(sizes) != 4 * dimensions:
        raise DataError(f"{path}: not an idx file of bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", sizes)
    count = math.prod(shape)
    check_bytes(count, path)
    data = stream.read(count + 1)
    if len(data) != count:
        problem = "fewer" if len(data) < count else "more"
        raise DataError(f"{path}: holds {problem} bytes than its header says; copy it again")
    array: np.ndarray = np.frombuffer(data, np.uint8).reshape(shape).copy()
    return array


def _read_all(root: Path, folder: str, labels: tuple[str, ...]) -> Raw:
    train, test = (_read_part(root, folder, part) for part in ("train", "t10k"))
    return Raw(root, labels, train, test)


def _read_part(root: Path, folder: str, part: str) -> Arrays:
    images = _find(root, folder, f"{part}-images-idx3-ubyte")
    x = read_idx(images, 3)
    y = read_idx(_find(root, folder, f"{part}-labels-idx1-ubyte"), 1)
    if len(x) != len(y):
        raise DataError(f"{images}: holds {len(x)} images, but there are {len(y)} labels")
    return Arrays(x[:, None], y.astype(np.int64))


def _find(root: Path, folder: str, name: str) -> Path:
    """Look in torchvision's place first, then the root itself; plain or gzipped."""
    for place in (root / folder / "raw", root):
        for path in (place / name, place / f"{name}.gz"):
            if path.is_file():
                return path
    raise DataError(
        f"{root}: there is no {name} or {name}.gz in it or in its {folder}/raw; nothing is "
        "downloaded: put the four idx files there"
    )
