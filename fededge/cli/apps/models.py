"""The flags of `fededge predict` and `fededge serve-model` that choose and run a model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fededge.predictor import Predictor

__all__ = ["add_model_options", "from_one", "open_model"]


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL_OR_STATE",
        help="the link `current`, a model's folder, or an agent's state folder",
    )
    parser.add_argument(
        "--provider", help="tensorrt, cuda, cpu, … (default: the first of these that starts)"
    )
    parser.add_argument("--variant", help="fp32, fp16 or int8 (default: the agent's choice)")
    parser.add_argument(
        "--trusted-key",
        metavar="FILE",
        help="public key; models without its signature are refused",
    )
    parser.add_argument(
        "--threads", type=from_one, default=1, help="threads of ONNX Runtime (default: 1)"
    )


def open_model(options: argparse.Namespace) -> Predictor:
    from fededge.predictor import Predictor

    return Predictor(
        options.model,
        provider=options.provider,
        variant=options.variant,
        threads=options.threads,
        trusted_key=options.trusted_key,
    )


def from_one(text: str) -> int:
    """Parse a whole number from 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)
