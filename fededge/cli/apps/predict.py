"""`fededge predict`: classify files and folders with a device's model."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fededge._internal.plain_text import plain
from fededge.cli.apps.models import add_model_options, from_one, open_model
from fededge.errors import DataError
from fededge.inputs.images import SUFFIXES
from fededge.predictor import Prediction, Predictor
from fededge.predictor.prediction import as_json

__all__ = ["add_to"]

TEXT = """\
Classify image files, and all images in folders, with a device's model; a model for texts classifies
every line of text files. It needs ONNX Runtime, numpy and (for images) Pillow, not torch.

examples:
  fededge predict state/models/current photo.jpg
  fededge predict state photos/ --top 3
  fededge predict state photos/ --csv > answers.csv
  fededge predict state photos/ --json > answers.jsonl
"""


class Item(NamedTuple):
    """An input and its displayed name; or an error, if it cannot be read."""

    name: str
    input: Path | str
    error: DataError | None = None


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    add_model_options(parser)
    parser.add_argument(
        "inputs", nargs="+", type=Path, metavar="FILE_OR_FOLDER", help="files, folders of images"
    )
    parser.add_argument("--top", type=from_one, default=1, help="number of labels (default: 1)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per line")
    form.add_argument("--csv", action="store_true", help="a table with a header")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write one line per input; an unreadable one gets an error, and exit code 2."""
    predictor = open_model(options)
    items = list(_items(options.inputs, predictor.about.input.kind))
    write = _writer(options, predictor, items)
    failed = False
    for item in _with_progress(items):
        answer = _answer(predictor, item)
        failed |= isinstance(answer, DataError)
        write(item.name, answer)
    return DataError.exit_code if failed else 0


def _answer(predictor: Predictor, item: Item) -> Prediction | DataError:
    if item.error is not None:
        return item.error
    try:
        return predictor.predict(item.input)
    except DataError as error:
        return error


def _items(given: Sequence[Path], kind: str) -> Iterator[Item]:
    for path in given:
        if kind == "text":
            yield from _lines(path)
        else:
            yield from _images(path)


def _lines(path: Path) -> Iterator[Item]:
    """Yield the lines of a text file that are not empty, each named by its number."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        yield Item(str(path), path, DataError(f"{path}: not a text in UTF-8"))
    except OSError as error:
        yield Item(str(path), path, DataError(f"{path}: cannot be read ({error.strerror})"))
    else:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield Item(f"{path}:{number}", line)


def _images(given: Path) -> Iterator[Item]:
    """Yield a file, or all images of a folder; an error if it has none."""
    found = sorted(_walk(given)) if os.path.isdir(given) else [given]
    yield from (Item(str(file), file) for file in found)
    if not found:
        text = f"{given}: there is no image in this folder ({', '.join(SUFFIXES)})"
        yield Item(str(given), given, DataError(text))


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the images of a folder and its sub-folders, without hidden ones."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in SUFFIXES and path.is_file() and not hidden:
            yield path


def _with_progress(items: Sequence[Item]) -> Iterable[Item]:
    """Count the items on stderr, if stdout goes to a file and stderr to a terminal."""
    if sys.stdout.isatty() or not sys.stderr.isatty():
        return items
    return _counted(items)


def _counted(items: Sequence[Item]) -> Iterator[Item]:
    for number, item in enumerate(items, 1):
        yield item
        end = "\n" if number == len(items) else ""
        print(f"\r{number} of {len(items)}", end=end, file=sys.stderr, flush=True)


Write = Callable[[str, Prediction | DataError], None]


def _writer(options: argparse.Namespace, predictor: Predictor, items: Sequence[Item]) -> Write:
    if options.json:
        return _json_writer(options.top)
    if options.csv:
        return _csv_writer(min(options.top, len(predictor.about.labels)))
    widths = max((len(item.name) for item in items), default=0), _longest(predictor)
    return _text_writer(options.top, widths)


def _json_writer(top: int) -> Write:
    def write(name: str, answer: Prediction | DataError) -> None:
        about = {"error": str(answer)} if isinstance(answer, DataError) else as_json(answer, top)
        print(json.dumps({"file": name, **about}, ensure_ascii=False))

    return write


def _csv_writer(top: int) -> Write:
    """Write `file, version, label, probability, label 2, probability 2, …`; errors to stderr."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    numbers = ["", *(f" {number}" for number in range(2, top + 1))]
    best = [f"{column}{number}" for number in numbers for column in ("label", "probability")]
    table.writerow(["file", "version", *best])

    def write(name: str, answer: Prediction | DataError) -> None:
        if isinstance(answer, DataError):
            _complain(answer)
        else:
            cells = [cell for label, p in answer.top(top) for cell in (label, f"{p:.6f}")]
            table.writerow([name, answer.version, *cells])

    return write


def _text_writer(top: int, widths: tuple[int, int]) -> Write:
    def write(name: str, answer: Prediction | DataError) -> None:
        if isinstance(answer, DataError):
            _complain(answer)
        else:
            best = [f"{plain(label):<{widths[1]}} {p:7.2%}" for label, p in answer.top(top)]
            print("  ".join([f"{plain(name):<{widths[0]}}", *best]))

    return write


def _longest(predictor: Predictor) -> int:
    return max(map(len, predictor.about.labels))


def _complain(error: DataError) -> None:
    print(f"fededge: {plain(str(error))}", file=sys.stderr)
