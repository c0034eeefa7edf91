"""Loads a source by name: its training set and, if it has one, its test set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from fededge._internal.lazy_torch import torch
from fededge._internal.suggestions import unknown
from fededge.data.dataset import Dataset, statistics
from fededge.data.formats.agnews import read_agnews
from fededge.data.formats.cifar import read_cifar10, read_cifar100
from fededge.data.formats.csv_table import read_csv
from fededge.data.formats.idx import FASHION, read_fashion_mnist, read_mnist
from fededge.data.formats.images import read_folder
from fededge.data.formats.npz import read_npz
from fededge.data.formats.tiny_imagenet import read_tiny_imagenet
from fededge.data.raw import (
    LENGTH,
    VOCABULARY,
    Arrays,
    Naming,
    Raw,
    Request,
    Tokens,
    numbering,
)
from fededge.errors import ConfigError, DataError

__all__ = ["embedded", "load", "sources"]

Reader = Callable[[Request], Raw]

AS_THEY_ARE = Naming()


def embedded() -> tuple[Dataset, Dataset]:
    """Load the embedded set: 600 + 100 Fashion-MNIST images of each of its ten classes."""
    train, test = load("embedded", None)
    assert test is not None
    return train, test


def sources() -> tuple[str, ...]:
    """Return the names that `load` knows."""
    return tuple(SOURCES)


def load(
    source: str,
    root: Path | None,
    *,
    shape: tuple[int, ...] | None = None,
    labels: Sequence[str] | None = None,
    vocabulary: int = 0,
    most_bytes: int | None = None,
    naming: Naming = AS_THEY_ARE,
) -> tuple[Dataset, Dataset | None]:
    """Read a source into memory.

    Args:
        source: one of `sources()`.
        root: the folder or file that the source reads; "embedded" has none.
        shape: the federation's inputs: channels, height and width of an image, or the length of a
            text. Image files are fitted to it; arrays must have it already.
        labels: the federation's labels. They decide the class numbers; the source may lack
            classes, but a class unknown to the federation is an error.
        vocabulary: the federation's vocabulary of texts; 0 for images, or if left open.
        most_bytes: memory limit of inputs that are fitted to the federation's shape.
        naming: other names of classes, and folders to ignore; for "folder" and "csv".

    Returns:
        The training set, and the test set, or None if the source has none (see `local_split`).
        Both have the training set's mean and std.
    """
    if source not in SOURCES:
        raise ConfigError(unknown("data source", source, SOURCES))
    wanted = None if labels is None else _checked(labels)
    request = _request(source, root, shape, wanted, vocabulary, most_bytes)
    raw = SOURCES[source](request._replace(naming=naming))
    for part in (raw.train, raw.test):
        if part is not None:
            _check(part, raw, shape)
    raw = _relabelled(raw, wanted)
    pixels = None if raw.vocabulary else torch.from_numpy(raw.train.x)
    mean, std = ((), ()) if pixels is None else statistics(pixels)

    def dataset(part: Arrays) -> Dataset:
        x, y = map(torch.from_numpy, part)
        return Dataset(x, y, raw.labels, mean, std, raw.vocabulary, raw.skipped)

    return dataset(raw.train), raw.test and dataset(raw.test)


def _read_embedded(request: Request) -> Raw:
    if request.root is not None:
        raise ConfigError(
            f"data source 'embedded' reads no `root`; remove it (it is {request.root})"
        )
    file = resources.files("fededge.data") / "embedded" / "fashion-mnist.npz"
    with resources.as_file(file) as path:
        return read_npz(Request(path, labels=FASHION))


SOURCES: dict[str, Reader] = {
    "embedded": _read_embedded,
    "fashion-mnist": read_fashion_mnist,
    "mnist": read_mnist,
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "tiny-imagenet": read_tiny_imagenet,
    "agnews": read_agnews,
    "folder": read_folder,
    "npz": read_npz,
    "csv": read_csv,
}
TEXT_SOURCES = ("agnews", "csv")
IMAGE_SOURCES = tuple(name for name in SOURCES if name != "agnews")


def _request(
    source: str,
    root: Path | None,
    shape: tuple[int, ...] | None,
    labels: tuple[str, ...] | None,
    vocabulary: int,
    most_bytes: int | None,
) -> Request:
    """Make the request for a source's reader; refuse a source of the other kind."""
    if shape is None and not vocabulary:
        return Request(root, labels=labels)
    if shape is None or len(shape) == 1:
        _check_kind(source, TEXT_SOURCES, "texts")
        tokens = Tokens(shape[0] if shape else LENGTH, vocabulary or VOCABULARY, most_bytes)
        return Request(root, labels=labels, tokens=tokens)
    _check_kind(source, IMAGE_SOURCES, "images")
    channels, height, width = shape
    return Request(root, (channels, height, width), labels, most_bytes=most_bytes)


def _check_kind(source: str, allowed: tuple[str, ...], kind: str) -> None:
    if source not in allowed:
        raise DataError(
            f"data source '{source}' has no {kind}, the inputs of this federation; use one of "
            f"{', '.join(allowed)}"
        )


def _checked(labels: Sequence[str]) -> tuple[str, ...]:
    if not labels or len(set(labels)) != len(labels):
        raise DataError(f"the list of labels must name each class once, got {list(labels)}")
    return tuple(labels)


def _check(part: Arrays, raw: Raw, shape: tuple[int, ...] | None) -> None:
    x, y = part
    if x.size == 0:
        raise DataError(
            f"{raw.where}: it holds no images, or images without pixels",
            "the device's data has no images",
        )
    wanted = shape or raw.train.x.shape[1:]
    if x.shape[1:] != wanted:
        raise DataError(
            f"{raw.where}: its images must have shape {list(wanted)}, got {list(x.shape[1:])}"
        )
    wrong = y[(y < 0) | (y >= len(raw.labels))]
    if len(wrong):
        raise DataError(
            f"{raw.where}: label {wrong[0]} is out of range for {len(raw.labels)} classes"
        )


def _relabelled(raw: Raw, labels: tuple[str, ...] | None) -> Raw:
    """Renumber the classes in the order of the federation's labels."""
    if labels is None or labels == raw.labels:
        return raw
    numbers = np.asarray(list(numbering(raw.labels, labels, raw.where).values()))
    train = raw.train._replace(y=numbers[raw.train.y])
    test = raw.test and raw.test._replace(y=numbers[raw.test.y])
    return raw._replace(labels=labels, train=train, test=test)
