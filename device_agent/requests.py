"""Requests of the agent to its trainer, and the answers: plain values that cross to its process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fededge.flat import Layout
from fededge.wire import tensors
from fededge.wire.messages import State
from fededge_agent.exports.export_requests import PersonalModel
from fededge_agent.store import Index, TrainedTurn

__all__ = [
    "AbandonRequest",
    "ExpectRequest",
    "HandOverRequest",
    "MeasureRequest",
    "PrepareRequest",
    "PreparedJob",
    "Request",
    "StoppedError",
    "TrainRequest",
    "TurnTrainer",
]


@dataclass(frozen=True)
class PreparedJob:
    """The facts of a job that the trainer has prepared: all that the agent needs to know of it.

    `sends` are the names of the vectors that come with the model, `scalars` the numbers that may
    leave the device with an update, `skipped` the files of examples that cannot be read.
    """

    layout: Layout
    sends: tuple[str, ...]
    scalars: frozenset[str]
    examples: int
    skipped: int = 0

    @property
    def most_bytes(self) -> int:
        """The largest size that a model of the federation can have."""
        return tensors.payload_limit(self.layout, 1 + len(self.sends))


class StoppedError(Exception):
    """A training was abandoned between two steps."""


@dataclass(frozen=True)
class PrepareRequest:
    """Prepare the job of this state; the answer is a PreparedJob.

    `export`: trace the network now, which takes seconds, instead of after the first turn.
    """

    state: State
    export: bool = True


@dataclass(frozen=True)
class TrainRequest:
    """Take the turn of this state from the files that the index names; the answer: TrainedTurn."""

    state: State
    index: Index


@dataclass(frozen=True)
class HandOverRequest:
    """Hand the personal model of the last turn over; the answer is a PersonalModel, or None."""


@dataclass(frozen=True)
class MeasureRequest:
    """Add a row of metrics for the last turn."""


@dataclass(frozen=True)
class ExpectRequest:
    """A turn waits: do not measure for long. It has no answer of its own."""


@dataclass(frozen=True)
class AbandonRequest:
    """Stop the training at its next step: it has no answer of its own."""


Request = PrepareRequest | TrainRequest | HandOverRequest | MeasureRequest


class TurnTrainer(Protocol):
    """The trainer, wherever it is. The constructor only stores; `start` and `stop` do.

    `prepared` is false until a job is prepared, and after a stop or a crash.
    """

    @property
    def prepared(self) -> bool: ...
    def start(self) -> None: ...
    def load_methods(self) -> None: ...
    def prepare(self, state: State, export: bool = True) -> PreparedJob: ...
    def train(self, state: State, index: Index) -> TrainedTurn: ...
    def expect(self) -> None: ...
    def abandon(self) -> None: ...
    def hand_over(self) -> PersonalModel | None: ...
    def measure(self) -> None: ...
    def stop(self) -> None: ...
