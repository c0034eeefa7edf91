"""The settings of one run of one method on one split. Flags come from it: it loads no torch."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["Experiment"]


class Experiment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings that determine a run's result."""

    method: str = "fedavg"
    seed: Annotated[int, Meta(ge=0, le=2**53)] = 0
    source: str = "embedded"
    root: str = ""
    split: str = "dirichlet:0.1"
    devices: Annotated[int, Meta(ge=1, le=100_000)] = 20
    participants: Annotated[int, Meta(ge=0)] = 8
    test_share: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    limit: Annotated[int, Meta(ge=0)] = 0
    model: str = "lenet"
    head: str = "linear"
    weights: str = ""
    rounds: Annotated[int, Meta(ge=1, le=100_000)] = 20
    epochs: Annotated[int, Meta(ge=1, le=10_000)] = 2
    batch_size: Annotated[int, Meta(ge=1)] = 64
    lr: Annotated[float, Meta(gt=0, le=1e6)] = 0.01
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Meta(ge=0, le=1e6)] = 1e-5
    clip_norm: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    encoding: str = "float32"
    measure_every: Annotated[int, Meta(ge=1)] = 1
    device: str = "cpu"
    threads: Annotated[int, Meta(ge=0, le=1024)] = 1
    precision: str = "float32"
    method_files: dict[str, str] = {}
    """The SHA-256 of each plugin's file, by method name."""
    model_file: str = ""
    """The SHA-256 of the network's file, if it is a user's own."""
    weights_sha256: str = ""
    """The SHA-256 of the file of weights."""
