"""CIFAR-10 and CIFAR-100: the official binary version, or torchvision's folder without it.

The binary version is plain records and is preferred. The Python version is made of pickles, which
FedEdge never opens itself: torchvision does, after comparing each file with the official MD5.
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


class Layout(NamedTuple):
    """What tells the two sets apart; the label is the last of a record's leading bytes."""

    source: str
    binary: str
    names: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    classes: int
    pickles: str
    torchvision: str


CIFAR10 = Layout(
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
CIFAR100 = Layout(
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


def _read(layout: Layout, request: Request) -> Raw:
    root = request.needed(layout.source, f"the folder that holds {layout.binary}")
    for folder in (root / layout.binary, root):
        if any((folder / name).is_file() for name in (layout.test, *layout.train)):
            return _read_binary(layout, folder)
    if (root / layout.pickles).is_dir():
        return _read_torchvision(layout, root)
    raise DataError(
        f"{root}: there is no {layout.binary} in it, nor {layout.pickles}; nothing is downloaded, "
        "so unpack the official binary version there"
    )


def _read_binary(layout: Layout, folder: Path) -> Raw:
    labels = _read_names(folder / layout.names, layout.classes)
    test = _read_records(folder / layout.test, layout.label_bytes)
    parts = [_read_records(folder / name, layout.label_bytes) for name in layout.train]
    train = Arrays(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))
    return Raw(folder, labels, train, test)


def _read_names(path: Path, classes: int) -> tuple[str, ...]:
    """The official class names; copies of the set without that file number their classes."""
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


def _read_torchvision(layout: Layout, root: Path) -> Raw:
    try:
        dataset = getattr(importlib.import_module("torchvision.datasets"), layout.torchvision)
    except (ImportError, OSError, RuntimeError) as error:
        raise DataError(
            f"{root / layout.pickles}: reading it takes torchvision, which cannot be imported "
            f"({error}); use the binary version ({layout.binary}) or install fededge[vision]"
        ) from error
    try:
        parts = [dataset(str(root), train=train, download=False) for train in (True, False)]
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{root / layout.pickles}: torchvision finds files missing or with another MD5 than "
            "the official ones; copy them again"
        ) from error
    train, test = (_from_torchvision(part) for part in parts)
    return Raw(root / layout.pickles, tuple(parts[0].classes), train, test)


def _from_torchvision(part: Any) -> Arrays:
    x = np.ascontiguousarray(part.data.transpose(0, 3, 1, 2))
    return Arrays(x, np.asarray(part.targets, np.int64))
