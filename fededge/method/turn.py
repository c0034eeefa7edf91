"""A device's turn in one round: what it has, where it stands, and what a method may see of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.flat import FlatModel, Layout
from fededge.method.objective import Output
from fededge.method.private import Private
from fededge.method.teacher import Teacher, outputs

__all__ = ["Batch", "Examples", "Hyper", "Phase", "Round", "Turn"]


@dataclass(frozen=True)
class Hyper:
    """How a device trains, the same on all devices: announced by the coordinator."""

    epochs: int = 1
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    """A longer gradient of the loss is scaled down to this norm; 0: none is."""


@dataclass(frozen=True, eq=False)
class Examples:
    """A device's own data: raw inputs and labels, for training and held out."""

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    classes: int

    @cached_property
    def counts(self) -> Tensor:
        """How many training examples each class has."""
        return torch.bincount(self.y, minlength=self.classes)


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs, and one or more labellings of them whose weights sum to 1 (mixup gives two).

    `index` says which of the device's examples the inputs are; None once they are mixtures.
    """

    x: Tensor
    targets: tuple[tuple[Tensor, float], ...]
    index: Tensor | None = None


class Unread(Batch):
    """A batch whose inputs are made ready when somebody asks for them, each time."""

    def __init__(self, turn: Turn, index: Tensor) -> None:
        vars(self).update(turn=turn, targets=((turn.data.y[index], 1.0),), index=index)

    @property
    def x(self) -> Tensor:
        turn: Turn = vars(self)["turn"]
        prepared: Tensor = turn.preprocess(turn.data.x[self.index])
        return prepared


@dataclass(frozen=True, eq=False)
class Phase:
    """A stretch of the local training. Momentum begins anew in each.

    The phases that are not `aside` follow each other; the end of the last one is `r.model`, which
    is what is sent. One that is `aside` trains a vector of its own (from `start`, or from where
    the training stands) and touches nothing else. Each end is kept in `r.ends`.

    Attributes:
        share: of the steps that the coordinator asks for; the shares sum to 1.
        epochs: passes of its own instead of a share.
        part: submodules (`"head"`) or tensors that are trained; all of the network if empty.
    """

    name: str = "train"
    share: float = 1.0
    epochs: int | None = None
    part: tuple[str, ...] = ()
    aside: bool = False
    start: Tensor | None = None


@dataclass(eq=False)
class Turn:
    """All of a turn. The local loop changes it; a method sees it as `Round`."""

    seed: int
    number: int
    device: str
    hyper: Hyper
    data: Examples
    preprocess: nn.Module
    net: FlatModel
    received: Tensor
    sent: Mapping[str, Tensor]
    private: Private
    loss: Callable[[Turn, Output, Batch], Tensor]
    turns: int = 1
    phase: Phase = field(default_factory=Phase)
    start: Tensor = field(default_factory=lambda: torch.empty(0))
    steps: int = 0
    ends: dict[str, Tensor] = field(default_factory=dict)
    kappas: dict[str, float] = field(default_factory=dict)
    phase_steps: dict[str, int] = field(default_factory=dict)
    memos: dict[str, dict[str, Any]] = field(default_factory=dict)
    streams: dict[str, torch.Generator] = field(default_factory=dict)

    def generator(self, purpose: str) -> torch.Generator:
        """Randomness fixed by run, round, device and purpose: a repeated turn is the same."""
        if purpose not in self.streams:
            key = f"{self.seed}/{self.number}/{self.device}/{purpose}"
            seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little", signed=True)
            self.streams[purpose] = torch.Generator().manual_seed(seed)
        return self.streams[purpose]

    def batch(self, index: Tensor) -> Batch:
        inputs = self.preprocess(self.data.x[index])
        return Batch(inputs, ((self.data.y[index], 1.0),), index)


@dataclass(slots=True, eq=False)
class Round:
    """One turn as one layer sees it: its own private state, notes and vectors, and what all share.

    Whatever it gives is to be read, not changed; `memo` alone is for the layer to write in.
    """

    turn: Turn
    layer: str

    @property
    def seed(self) -> int:
        return self.turn.seed

    @property
    def number(self) -> int:
        """The round's number, from 0."""
        return self.turn.number

    @property
    def turns(self) -> int:
        """How often a device is expected to take part in the whole run, at least once."""
        return self.turn.turns

    @property
    def device(self) -> str:
        return self.turn.device

    @property
    def hyper(self) -> Hyper:
        return self.turn.hyper

    @property
    def data(self) -> Examples:
        return self.turn.data

    @property
    def counts(self) -> Tensor:
        """How many training examples each class has."""
        return self.turn.data.counts

    @property
    def examples(self) -> int:
        return len(self.turn.data.y)

    @property
    def received(self) -> Tensor:
        """The global model."""
        return self.turn.received

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """The vectors that the layer's coordinator half sent with the model."""
        prefix = f"{self.layer}."
        sent = self.turn.sent.items()
        return {name[len(prefix) :]: v for name, v in sent if name.startswith(prefix)}

    @property
    def private(self) -> Private:
        """What the layer has kept; in `personal`, what it has just decided to keep."""
        return self.turn.private.of(self.layer)

    @property
    def memo(self) -> dict[str, Any]:
        """The layer's notes during the turn."""
        return self.turn.memos.setdefault(self.layer, {})

    @property
    def net(self) -> FlatModel:
        return self.turn.net

    @property
    def layout(self) -> Layout:
        return self.turn.net.layout

    @property
    def phase(self) -> Phase:
        return self.turn.phase

    @property
    def start(self) -> Tensor:
        """Where the training began."""
        return self.turn.start

    @property
    def model(self) -> Tensor:
        """Where the training is now; when it is over, the model that will be sent."""
        return self.turn.net.vector

    @property
    def ends(self) -> Mapping[str, Tensor]:
        """Where each phase ended, by its name."""
        return self.turn.ends

    @property
    def kappas(self) -> Mapping[str, float]:
        """How strongly all layers together pull, phase by phase: the κ of their sum."""
        return self.turn.kappas

    @property
    def steps(self) -> int:
        """How many steps led from `start` to `model`."""
        return self.turn.steps

    @property
    def phase_steps(self) -> Mapping[str, int]:
        """How many of them each phase took, those aside left out."""
        return self.turn.phase_steps

    def generator(self, purpose: str) -> torch.Generator:
        """A stream of its own for each purpose: mixup must not change the order of batches.

        The same name gives the same generator during the turn, so that the stream goes on.
        """
        return self.turn.generator(f"{self.layer}/{purpose}")

    def batch(self, index: Tensor) -> Batch:
        """These examples, ready for the network."""
        return self.turn.batch(index)

    def unread(self, index: Tensor) -> Batch:
        """The same for one who has what the network makes of them: inputs only on demand."""
        return Unread(self.turn, index)

    def loss(self, out: Output, batch: Batch) -> Tensor:
        """The loss of the whole composition, for a layer that trains something of its own."""
        return self.turn.loss(self.turn, out, batch)

    def outputs(self, vector: Tensor | None = None) -> Output:
        """What a model makes of all the device's examples, in evaluation mode.

        Args:
            vector: the model; left out, the one in training.
        """
        turn = self.turn
        vector = turn.net.vector if vector is None else vector
        return outputs(turn.net, vector, turn.preprocess, turn.data.x)

    def teacher(self, vector: Tensor) -> Teacher:
        """A fixed model whose outputs the loss compares with."""
        turn = self.turn
        return Teacher(turn.net, vector.clone(), turn.preprocess, turn.data.x)
