"""What a source hands over before it becomes a Dataset, and the limits of all sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fededge.errors import ConfigError, DataError
from fededge.choices import unknown

__all__ = ["Arrays", "Raw", "Request", "Shape", "check_bytes", "numbering", "reading"]

Shape = tuple[int, int, int]

# More pixels than an edge box has memory for; a file that claims more is damaged or hostile.
MOST_BYTES = 8 * 2**30


class Request(NamedTuple):
    """Where to read, and what the federation wants: image shape and labels, None if it is free."""

    root: Path | None
    shape: Shape | None = None
    labels: tuple[str, ...] | None = None

    def needed(self, source: str, what: str) -> Path:
        """The root of a source that cannot do without one."""
        if self.root is None:
            raise ConfigError(f"data source '{source}' needs `root`, {what}")
        return self.root


class Arrays(NamedTuple):
    """Pixels uint8 [N, C, H, W] and class numbers int64 [N]."""

    x: np.ndarray
    y: np.ndarray


class Raw(NamedTuple):
    """The images of a source; `where` is what an error about them names."""

    where: Path
    labels: tuple[str, ...]
    train: Arrays
    test: Arrays | None = None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the operating system says about a file into one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file or folder; check `root`") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason})") from error


def check_bytes(count: int, where: Path) -> None:
    """Refuse more pixels than fit, before memory is taken for them."""
    if count > MOST_BYTES:
        raise DataError(
            f"{where}: {count:,} bytes of pixels are more than the {MOST_BYTES:,} allowed; "
            "use fewer or smaller images"
        )


def numbering(names: Sequence[str], labels: Sequence[str] | None, where: Path) -> dict[str, int]:
    """The class number of each name, by the federation's labels when there are any."""
    if labels is None:
        return {name: number for number, name in enumerate(names)}
    numbers = {name: number for number, name in enumerate(labels)}
    for name in names:
        if name not in numbers:
            raise DataError(f"{where}: {unknown('label', name, numbers)} in this federation")
    return {name: numbers[name] for name in names}
