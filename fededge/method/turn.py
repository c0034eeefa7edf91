"""A device's turn in one round: its data, its progress, and the view that a method gets of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fededge._internal.lazy_torch import Tensor, nn, torch
from fededge.flat import FlatModel, Layout
from fededge.hardware import Precision
from fededge.method.examples import Batch, Examples
from fededge.method.objective import Output
from fededge.method.private import Private, values_of
from fededge.method.teacher import Teacher, outputs

__all__ = ["Batch", "Examples", "Hyper", "Phase", "Turn", "TurnView"]


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of local training; announced by the coordinator, equal on all devices."""

    epochs: int = 1
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    """The largest norm of the loss's gradient; longer ones are scaled down. 0: no clipping."""


class LazyBatch(Batch):
    """A batch that preprocesses its inputs on every access, and only then."""

    def __init__(self, turn: Turn, index: Tensor, on_host: Tensor) -> None:
        resident = turn.data.x.device == index.device
        labels = turn.data.y[index]
        rows = index if resident else on_host
        vars(self).update(turn=turn, rows=rows, targets=((labels, 1.0),), index=index)

    @property
    def x(self) -> Tensor:
        turn: Turn = vars(self)["turn"]
        rows: Tensor = vars(self)["rows"]
        return turn.inputs(rows)


@dataclass(frozen=True, eq=False)
class Phase:
    """A part of the local training. Momentum starts at zero in each phase.

    The phases that are not `aside` continue each other; the last one's result is `r.model`, which
    is uploaded. A phase that is `aside` trains its own vector, from `start` or from the current
    model, and does not affect the upload. `r.ends` keeps the result of each phase.

    Attributes:
        share: the phase's share of the steps that the coordinator asks for; shares sum to 1.
        epochs: the phase's own number of epochs, instead of a share.
        part: submodules (`"head"`) or tensors to train; empty: the whole network.
    """

    name: str = "train"
    share: float = 1.0
    epochs: int | None = None
    part: tuple[str, ...] = ()
    aside: bool = False
    start: Tensor | None = None


@dataclass(eq=False)
class Turn:
    """The whole state of a turn. The local loop changes it; a method sees it as `TurnView`."""

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
    precision: Precision = Precision.FLOAT32
    phase: Phase = field(default_factory=Phase)
    start: Tensor = field(default_factory=lambda: torch.empty(0))
    steps: int = 0
    ends: dict[str, Tensor] = field(default_factory=dict)
    kappas: dict[str, float] = field(default_factory=dict)
    phase_steps: dict[str, int] = field(default_factory=dict)
    micro_batch: int = 0
    """The most examples of a forward pass; 0: a whole batch. Lowered when memory runs out."""
    ahead: Sequence[int] = ()
    """Sizes of this epoch's batches, from the current one on."""
    memos: dict[str, dict[str, Any]] = field(default_factory=dict)
    streams: dict[str, torch.Generator] = field(default_factory=dict)

    def generator(self, purpose: str) -> torch.Generator:
        """Return a stream seeded by run, round, device and purpose: a repeated turn is equal."""
        if purpose not in self.streams:
            key = f"{self.seed}/{self.number}/{self.device}/{purpose}"
            seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little", signed=True)
            self.streams[purpose] = torch.Generator().manual_seed(seed)
        return self.streams[purpose]

    def batch(self, index: Tensor, raw: Tensor | None = None) -> Batch:
        """Return these examples, preprocessed.

        Args:
            index: their positions, on the training's device.
            raw: their inputs, if these have been fetched already.
        """
        inputs = self.inputs(index) if raw is None else self.preprocess(raw)
        return Batch(inputs, ((self.data.y[index], 1.0),), index)

    def inputs(self, index: Tensor) -> Tensor:
        x = self.data.x
        prepared: Tensor = self.preprocess(self.moved(x.index_select(0, index.to(x.device))))
        return prepared

    def moved(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the host on the training's device, without waiting for the copy."""
        device = self.net.vector.device
        if tensor.device == device:
            return tensor
        return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(slots=True, eq=False)
class TurnView:
    """One turn as one layer sees it: the layer's private state, memo and vectors, and shared facts.

    Everything is read-only except `memo`.
    """

    turn: Turn
    layer: str

    @property
    def seed(self) -> int:
        return self.turn.seed

    @property
    def number(self) -> int:
        """The number of the round, from 0."""
        return self.turn.number

    @property
    def turns(self) -> int:
        """The expected number of turns of a device in the whole run, at least 1."""
        return self.turn.turns

    @property
    def device(self) -> str:
        return self.turn.device

    @property
    def device_seed(self) -> int:
        """A seed fixed by run, device and layer: the same in all turns."""
        digest = hashlib.sha256(f"{self.seed}/{self.device}/{self.layer}".encode()).digest()
        return int.from_bytes(digest[:7], "little")

    @property
    def hyper(self) -> Hyper:
        return self.turn.hyper

    @property
    def data(self) -> Examples:
        return self.turn.data

    @property
    def counts(self) -> Tensor:
        """The number of training examples of each class."""
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
        return values_of(self.turn.sent, self.layer)

    @property
    def private(self) -> Private:
        """The layer's private state; in `personal`, the state that `finish` returned."""
        return self.turn.private.of(self.layer)

    @property
    def memo(self) -> dict[str, Any]:
        """The layer's own dictionary, empty at the start of the turn."""
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
    def ahead(self) -> Sequence[int]:
        """Sizes of this epoch's batches, from the current one on: draw for all of them at once."""
        return self.turn.ahead

    @property
    def start(self) -> Tensor:
        """The model that local training started from."""
        return self.turn.start

    @property
    def model(self) -> Tensor:
        """The model in training; after the last step, the model to upload."""
        return self.turn.net.vector

    @property
    def ends(self) -> Mapping[str, Tensor]:
        """The model at the end of each phase, by phase name."""
        return self.turn.ends

    @property
    def kappas(self) -> Mapping[str, float]:
        """The κ of all layers' pulls together, by phase name."""
        return self.turn.kappas

    @property
    def steps(self) -> int:
        """The number of steps from `start` to `model`."""
        return self.turn.steps

    @property
    def phase_steps(self) -> Mapping[str, int]:
        """The number of these steps in each phase; phases aside are left out."""
        return self.turn.phase_steps

    def generator(self, purpose: str) -> torch.Generator:
        """Return the random stream for a purpose; separate, so that mixup leaves batches alone.

        The same purpose returns the same generator during the turn: its stream continues.
        """
        return self.turn.generator(f"{self.layer}/{purpose}")

    def batch(self, index: Tensor) -> Batch:
        """Return these examples, preprocessed for the network."""
        return self.turn.batch(index)

    def moved(self, tensor: Tensor) -> Tensor:
        """Return a tensor that was made on the host, such as a random draw, where training is."""
        return self.turn.moved(tensor)

    def lazy_batch(self, index: Tensor, on_host: Tensor | None = None) -> Batch:
        """Return the same batch, but preprocess its inputs only if the loss reads them.

        Args:
            index: the examples' positions, where training is.
            on_host: the same in the host's memory: inputs that lie there are then fetched without
                waiting for the device.
        """
        return LazyBatch(self.turn, index, index if on_host is None else on_host)

    def loss(self, out: Output, batch: Batch) -> Tensor:
        """Return the loss of the whole composition, for a layer that trains its own values."""
        return self.turn.loss(self.turn, out, batch)

    def outputs(self, vector: Tensor | None = None) -> Output:
        """Return a model's outputs for all the device's examples, in evaluation mode.

        Args:
            vector: the model; by default the one in training.
        """
        turn = self.turn
        vector = turn.net.vector if vector is None else vector
        return outputs(turn.net, vector, turn.preprocess, turn.data.x)

    def teacher(self, vector: Tensor) -> Teacher:
        """Return a fixed model whose outputs the loss uses as targets."""
        turn = self.turn
        return Teacher(turn.net, vector.clone(), turn.preprocess, turn.data.x)
