"""Rebuild the embedded data set from Debian's Fashion-MNIST: `python -m fededge.data.embed`.

The rule: numpy's default_rng(2017) draws, without replacement, 600 examples of each class of the
training file, class 0 to class 9, then 100 of each class of the test file. They are stored in the
order of the original files. The stored file is authoritative if another numpy draws differently.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from fededge.data.formats.idx import DEBIAN, read_fashion_mnist
from fededge.data.raw import Arrays, Request
from fededge.storage.files import replace_file

__all__ = ["SEED", "TEST", "TRAIN", "select"]

SEED = 2017
TRAIN, TEST = 600, 100
TARGET = Path(__file__).parent / "embedded" / "fashion-mnist.npz"


def select(train: Arrays, test: Arrays) -> tuple[Arrays, Arrays]:
    """Draw the training and the test part of the embedded set."""
    rng = np.random.default_rng(SEED)
    chosen = []
    for part, size in ((train, TRAIN), (test, TEST)):
        drawn = [rng.choice(np.flatnonzero(part.y == c), size, replace=False) for c in range(10)]
        index = np.sort(np.concatenate(drawn))
        chosen.append(Arrays(part.x[index], part.y[index]))
    return chosen[0], chosen[1]


def main() -> None:
    raw = read_fashion_mnist(Request(DEBIAN))
    assert raw.test is not None
    buffer = io.BytesIO()
    (x, y), (x_test, y_test) = select(raw.train, raw.test)
    np.savez_compressed(
        buffer, x=x, y=y.astype(np.uint8), x_test=x_test, y_test=y_test.astype(np.uint8)
    )
    replace_file(TARGET, buffer.getvalue())


if __name__ == "__main__":
    main()
