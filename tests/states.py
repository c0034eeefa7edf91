"""A coordinator's state for tests: a test names what it is about, the rest is plain."""

from __future__ import annotations

from typing import Any

from fededge.model_spec import ModelSpec
from fededge.wire.messages import Manifest, State, Training

__all__ = ["made_state"]

PLAIN: dict[str, Any] = {
    "federation": "test",
    "run": "run",
    "seed": 0,
    "round": 0,
    "rounds": 3,
    "phase": "open",
    "version": "000000-0123456789abcdef",
    "sha256": "ab" * 32,
    "layout": "cd" * 32,
    "method": "fedavg",
    "training": Training(1, 1, 0.1, 0.0, 0.0),
    "model": ModelSpec("lenet", ("a", "b"), (1, 28, 28), (0.5,), (0.5,)),
    "manifest": Manifest(1, 1024, 10, "ab" * 32),
    "deadline": 60.0,
}


def made_state(**changes: Any) -> State:
    """An open round of FedAvg with LeNet, with these changes."""
    return State(**{**PLAIN, **changes})
