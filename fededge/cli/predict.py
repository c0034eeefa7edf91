"""`fededge predict`: what a device's model says about image files."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fededge.cli.models import add_model_options, open_model
from fededge.errors import DataError
from fededge.pictures import SUFFIXES
from fededge.predictor import Prediction
from fededge.predictor.endpoint import as_json

__all__ = ["add_to"]

TEXT = """\
Ask a device's model about image files, and about all images in folders. It needs ONNX Runtime,
numpy and Pillow, not torch.

examples:
  fededge predict state/models/current photo.jpg
  fededge predict state photos/ --top 3
  fededge predict state photos/ --json > answers.jsonl
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    add_model_options(parser)
    parser.add_argument(
        "inputs", nargs="+", type=Path, metavar="FILE_OR_FOLDER", help="images, folders of images"
    )
    parser.add_argument("--top", type=_count, default=1, help="how many labels (default: 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Every image gets its line; one that cannot be read gets a sentence, and exit code 2."""
    files = [file for given in options.inputs for file in _images(given)]
    predictor = open_model(options)
    widths = max(len(str(file)) for file in files), max(map(len, predictor.about.labels))
    failed = False
    for file in files:
        try:
            prediction = predictor.predict(file)
        except DataError as error:
            failed = True
            _complain(file, error, options.json)
            continue
        if options.json:
            print(json.dumps({"file": str(file), **as_json(prediction, options.top)}))
        else:
            print(_line(file, prediction, options.top, widths))
    return DataError.exit_code if failed else 0


def _images(given: Path) -> Sequence[Path]:
    if not os.path.isdir(given):
        return [given]
    found = sorted(_walk(given))
    if not found:
        raise DataError(f"{given}: there is no image in this folder ({', '.join(SUFFIXES)})")
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """The images of a folder and of those in it, hidden ones left out."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in SUFFIXES and path.is_file() and not hidden:
            yield path


def _line(file: Path, prediction: Prediction, top: int, widths: tuple[int, int]) -> str:
    best = [f"{label:<{widths[1]}} {p:7.2%}" for label, p in prediction.top(top)]
    return "  ".join([f"{file!s:<{widths[0]}}", *best])


def _complain(file: Path, error: DataError, as_line: bool) -> None:
    if as_line:
        print(json.dumps({"file": str(file), "error": str(error)}))
    else:
        print(f"fededge: {error}", file=sys.stderr)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)
