"""AG News: the two official CSV files, each row a class from 1 to 4, a title and a description."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fededge.data.formats.csv_table import open_rows
from fededge.data.raw import Arrays, Raw, Request, Tokens
from fededge.errors import DataError

__all__ = ["read_agnews"]

LABELS = ("World", "Sports", "Business", "Sci/Tech")


def read_agnews(request: Request) -> Raw:
    """Read `train.csv` and `test.csv`; a text is a title and its description."""
    root = request.needed("agnews", "the folder that holds its train.csv and test.csv")
    folder = root / "ag_news_csv" if (root / "ag_news_csv").is_dir() else root
    tokens = request.tokens or Tokens()
    train, test = (_read(folder / name, tokens) for name in ("train.csv", "test.csv"))
    return Raw(folder, LABELS, train, test, tokens.vocabulary)


def _read(path: Path, tokens: Tokens) -> Arrays:
    texts: list[str] = []
    y: list[int] = []
    with open_rows(path) as rows:
        for number, row in enumerate(rows, start=1):
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                raise DataError(
                    f"{path}: row {number} is not a class from 1 to 4, a title and a description"
                )
            texts.append(f"{row[1]} {row[2]}")
            y.append(int(row[0]) - 1)
    return Arrays(tokens.of(texts, path), np.asarray(y, np.int64))
