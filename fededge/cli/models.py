"""What `fededge predict` and `fededge serve-model` share: which model, and what runs it."""

from __future__ import annotations

import argparse

from fededge.predictor import Predictor

__all__ = ["add_model_options", "open_model"]


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL_OR_STATE",
        help="the link `current`, a model's folder, or an agent's state folder",
    )
    parser.add_argument(
        "--provider", help="tensorrt, cuda, cpu, … (default: the first of these that starts)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of ONNX Runtime (default: 1)")


def open_model(options: argparse.Namespace) -> Predictor:
    return Predictor(options.model, provider=options.provider, threads=options.threads)
