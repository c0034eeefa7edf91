"""The flags of an experiment, for `fededge simulate` and `fededge compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from fededge.cli.hardware_flags import HARDWARE_FLAGS
from fededge.simulation.experiment import Experiment

__all__ = ["FLAGS", "add_experiment_options"]

FLAGS: tuple[tuple[str, type, str], ...] = (
    ("split", str, "label skew, such as dirichlet:0.1, pathological:2, incomplete, uniform"),
    ("devices", int, "number of devices"),
    ("participants", int, "devices that take part in a round; 0: all"),
    ("test-share", float, "share of each device's examples held out for its personal model"),
    ("limit", int, "most training images to use; 0: all"),
    ("model", str, "a network: a name, FILE.py:NAME or torchvision:NAME"),
    ("head", str, "its last layer: linear, bias-free, cosine:TAU"),
    ("weights", str, "safetensors file to begin with, of `fededge versions export --weights`"),
    ("rounds", int, "rounds to run"),
    ("epochs", int, "epochs on each device per round"),
    ("batch-size", int, "examples per step"),
    ("lr", float, "learning rate"),
    ("momentum", float, "momentum of SGD"),
    ("weight-decay", float, "weight decay of SGD"),
    ("clip-norm", float, "largest norm of a gradient; 0: no clipping"),
    ("encoding", str, "encoding of updates, such as float16+delta or int8+delta"),
    ("measure-every", int, "rounds between measurements of the local models"),
    *HARDWARE_FLAGS,
)


def add_experiment_options(parser: argparse.ArgumentParser) -> None:
    defaults = {field.name: field.default for field in msgspec.structs.fields(Experiment)}
    parser.add_argument("--data", metavar="SOURCE[:PATH]", help="default: embedded")
    for name, kind, text in FLAGS:
        default = defaults[name.replace("-", "_")]
        parser.add_argument(f"--{name}", type=kind, help=f"{text} (default: {default})")
    parser.add_argument(
        "--preset", metavar="NAME", help="a paper's setting; a wrong name lists all"
    )
    parser.add_argument("--config", type=Path, metavar="TOML", help="any of these keys in a file")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
