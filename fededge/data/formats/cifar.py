"""CIFAR-10 and CIFAR-100: the official binary version, or else torchvision's folder.

The binary version, plain records, is preferred. The Python version consists of pickles, which
FedEdge never opens itself: torchvision does, after it has checked each file's official MD5.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fededge.data.raw import Arrays, Raw, Request, check_bytes, reading
from fededge.errors import DataError

__all__ = ["read_cifar10", "read_cifar100"]

PIXELS = 3 * 32 * 32


class RecordFormat(NamedTuple):
    """File names and record format of a set; the label is the last of a record's leading bytes."""

    source: str
    binary: str
    names: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    classes: int
    pickles: str
    torchvision: str


CIFAR10 = RecordFormat(
    "cifar10",
    "cifar-10-batches-bin",
    "batches.meta.txt",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test_batch.bin",
    1,
    10,
    "cifar-10-batches-py",
    "CIFAR10",
)
CIFAR100 = RecordFormat(
    "cifar100",
    "cifar-100-binary",
    "fine_label_names.txt",
    ("train.bin",),
    "test.bin",
    2,
    100,
    "cifar-100-python",
    "CIFAR100",
)


def read_cifar10(request: Request) -> Raw:
    return _read(CIFAR10, request)


def read_cifar100(request: Request) -> Raw:
    return _read(CIFAR100, request)


def _read(format_: RecordFormat, request: Request) -> Raw:
    root = request.needed(format_.source, f"the folder that holds {format_.binary}")
    for folder in (root / format_.binary, root):
        if any((folder / name).is_file() for name in (format_.test, *format_.train)):
            return _read_binary(format_, folder)
    if (root / format_.pickles).is_dir():
        return _read_torchvision(format_, root)
    raise DataError(
        f"{root}: there is no {format_.binary} in it, nor {format_.pickles}; nothing is "
        "downloaded: unpack the official binary version there"
    )


def _read_binary(format_: RecordFormat, folder: Path) -> Raw:
    labels = _read_names(folder / format_.names, format_.classes)
    test = _read_records(folder / format_.test, format_.label_bytes)
    parts = [_read_records(folder / name, format_.label_bytes) for name in format_.train]
    train = Arrays(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))
    return Raw(folder, labels, train, test)


def _read_names(path: Path, classes: int) -> tuple[str, ...]:
    """Return the official class names; without that file, the classes' numbers."""
    if not path.exists():
        return tuple(str(number) for number in range(classes))
    with reading(path), path.open("rb") as file:
        text = file.read(100_000).decode("utf-8", errors="replace")
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(names) != classes:
        raise DataError(f"{path}: holds {len(names)} class names instead of {classes}")
    return names


def _read_records(path: Path, label_bytes: int) -> Arrays:
    record = label_bytes + PIXELS
    with reading(path):
        size = path.stat().st_size
        check_bytes(size, path)
        if size == 0 or size % record:
            raise DataError(f"{path}: {size:,} bytes are not whole records of {record} bytes")
        rows = np.fromfile(path, np.uint8).reshape(-1, record)
    x = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
    return Arrays(x, rows[:, label_bytes - 1].astype(np.int64))


def _read_torchvision(format_: RecordFormat, root: Path) -> Raw:
    try:
        dataset = getattr(importlib.import_module("torchvision.datasets"), format_.torchvision)
    except (ImportError, OSError, RuntimeError) as error:
        raise DataError(
            f"{root / format_.pickles}: reading it needs torchvision, which cannot be imported "
            f"({error}); use the binary version ({format_.binary}) or install fededge[vision]"
        ) from error
    try:
        parts = [dataset(str(root), train=train, download=False) for train in (True, False)]
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{root / format_.pickles}: files are missing or do not have their official MD5; copy "
            "them again"
        ) from error
    train, test = (_from_torchvision(part) for part in parts)
    return Raw(root / format_.pickles, tuple(parts[0].classes), train, test)


def _from_torchvision(part: Any) -> Arrays:
    x = np.ascontiguousarray(part.data.transpose(0, 3, 1, 2))
    return Arrays(x, np.asarray(part.targets, np.int64))
