"""The interface of data sources: their request, their result, and common limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fededge._internal.suggestions import unknown
from fededge.errors import ConfigError, DataError
from fededge.inputs.tokens import tokenise

__all__ = [
    "LENGTH",
    "VOCABULARY",
    "Arrays",
    "Naming",
    "Raw",
    "Request",
    "Shape",
    "Tokens",
    "check_bytes",
    "numbering",
    "reading",
]

Shape = tuple[int, int, int]

# More than an edge box's memory; a file that claims more is damaged or hostile.
MOST_BYTES = 8 * 2**30

# FedALA's values for AG News: its fastText has as many parameters here.
LENGTH, VOCABULARY = 200, 98_635


class Tokens(NamedTuple):
    """Tokenisation of texts: length, vocabulary and memory limit."""

    length: int = LENGTH
    vocabulary: int = VOCABULARY
    most_bytes: int | None = None

    def of(self, texts: Sequence[str], where: Path) -> np.ndarray:
        """Tokenise the texts of a file, int64 [N, length]."""
        if not texts:
            raise DataError(f"{where}: it holds no texts", "the device's data has no texts")
        check_bytes(8 * self.length * len(texts), where, "tokens", self.most_bytes)
        return tokenise(texts, self.length, self.vocabulary)


class Naming(NamedTuple):
    """Other names of classes in a device's data, and folders that are no class."""

    aliases: Mapping[str, str] = {}
    ignore: Sequence[str] = ()

    def label(self, name: str) -> str:
        """The federation's label for a name in the data."""
        return self.aliases.get(name, name)


class Request(NamedTuple):
    """A path to read, and the federation's image shape, labels and tokens; None leaves them open.

    `most_bytes` bounds the memory for images.
    """

    root: Path | None
    shape: Shape | None = None
    labels: tuple[str, ...] | None = None
    tokens: Tokens | None = None
    most_bytes: int | None = None
    naming: Naming = Naming()

    def needed(self, source: str, what: str) -> Path:
        """Return the root of a source that needs one."""
        if self.root is None:
            flag = f"on the command line, --data {source}:PATH"
            raise ConfigError(f"data source '{source}' needs `root`, {what} ({flag})")
        return self.root


class Arrays(NamedTuple):
    """Pixels uint8 [N, C, H, W] or tokens int64 [N, L], and class numbers int64 [N]."""

    x: np.ndarray
    y: np.ndarray


class Raw(NamedTuple):
    """The examples of a source; errors name `where`.

    `vocabulary` is 0 for images, and the number of different tokens for texts. `skipped` counts the
    files that cannot be read and were left out.
    """

    where: Path
    labels: tuple[str, ...]
    train: Arrays
    test: Arrays | None = None
    vocabulary: int = 0
    skipped: int = 0


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError about this path into a DataError."""
    try:
        yield
    except FileNotFoundError as error:
        text = f"{path}: there is no such file or folder; check `root`"
        raise DataError(text, "a file or folder of the device's data does not exist") from error
    except OSError as error:
        reason = error.strerror or "an error of the operating system"
        public = f"the device's data cannot be read ({reason})"
        raise DataError(f"{path}: cannot be read ({reason})", public) from error


def check_bytes(count: int, where: Path, what: str = "pixels", most: int | None = None) -> None:
    """Refuse more pixels or tokens than allowed, before they are allocated."""
    most = MOST_BYTES if most is None else min(most, MOST_BYTES)
    if count > most:
        raise DataError(
            f"{where}: {count:,} bytes of {what} are more than the {most:,} allowed; "
            "use fewer or smaller examples",
            f"the device's data would take {count:,} bytes of memory, {most:,} are allowed",
        )


def numbering(names: Sequence[str], labels: Sequence[str] | None, where: Path) -> dict[str, int]:
    """Return the class number of each name, by the federation's labels if given."""
    if labels is None:
        return {name: number for number, name in enumerate(names)}
    numbers = {name: number for number, name in enumerate(labels)}
    for name in names:
        if name not in numbers:
            raise DataError(
                f"{where}: {unknown('label', name, numbers)} in this federation; rename it, or set "
                "[data] aliases or ignore",
                "some labels of the device's data are not the federation's: its own log names them",
            )
    return {name: numbers[name] for name in names}
