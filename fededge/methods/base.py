"""What a method may fill in: a device half, a coordinator half, and the few types they speak in.

A method is a frozen dataclass of hyper-parameters. Whatever changes comes in as an argument, most
of it in `Round`, and leaves as a return value. It knows nothing of brokers, files or threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fededge.flat import FlatModel, Layout
from fededge.methods.private import Private, Value

__all__ = [
    "Affine",
    "Batch",
    "Finish",
    "Follows",
    "Hyper",
    "Merged",
    "Method",
    "Objective",
    "Output",
    "Phase",
    "Round",
    "Term",
    "generator",
]

Follows = Literal["training", "update"]
"""When a piece of private state is kept: at once, or only once the coordinator has accepted."""


@dataclass(frozen=True)
class Hyper:
    """How a device trains, the same on all devices: announced by the coordinator."""

    epochs: int = 1
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Inputs, and one or more labellings of them whose weights sum to 1 (mixup gives two)."""

    x: Tensor
    targets: tuple[tuple[Tensor, float], ...]


@dataclass(frozen=True)
class Output:
    """What the network made of a batch; `features` go into the last layer."""

    logits: Tensor
    features: Tensor


Term = Callable[[Output, Tensor], Tensor]
"""A batch-mean added to the loss, from the network's output and one labelling."""


@dataclass(frozen=True)
class Objective:
    """weight · CE(scale ⊙ z + added + shift[y], y) + Σ terms(z, y), a mean over the batch.

    Restricted softmax is a scale; balanced softmax, FedLC and FedACD are shifts (one row, or a row
    per label); FedBalance adds another model's logits; distillation and flattening are terms.
    """

    weight: float = 1.0
    scale: Tensor | None = None
    shift: Tensor | None = None
    added: Tensor | None = None
    terms: tuple[Term, ...] = ()

    def __add__(self, other: Objective) -> Objective:
        """Both at once: weights and scales multiply, shifts and added logits sum, terms join."""
        return Objective(
            self.weight * other.weight,
            _join(self.scale, other.scale, torch.mul),
            _join(self.shift, other.shift, torch.add),
            _join(self.added, other.added, torch.add),
            self.terms + other.terms,
        )

    def loss(self, out: Output, y: Tensor) -> Tensor:
        z = out.logits if self.scale is None else self.scale * out.logits
        if self.added is not None:
            z = z + self.added
        if self.shift is not None:
            z = z + (self.shift[y] if self.shift.dim() == 2 else self.shift)
        total = F.cross_entropy(z, y)
        if self.weight != 1.0:
            total = self.weight * total
        for term in self.terms:
            total = total + term(out, y)
        return total


@dataclass(frozen=True)
class Affine:
    """A correction of the gradient: g ← g + kappa · (w − anchor) + bias."""

    kappa: float = 0.0
    anchor: Tensor | None = None
    bias: Tensor | None = None

    def __add__(self, other: Affine) -> Affine:
        """κ₁(w − a₁) + κ₂(w − a₂) is one pull, towards the weighted mean of the anchors."""
        kappa = self.kappa + other.kappa
        bias = _join(self.bias, other.bias, torch.add)
        if self.anchor is None or other.anchor is None:
            return Affine(kappa, other.anchor if self.anchor is None else self.anchor, bias)
        if self.anchor is other.anchor or kappa == 0:
            return Affine(kappa, self.anchor, bias)
        return Affine(kappa, (self.kappa * self.anchor + other.kappa * other.anchor) / kappa, bias)


@dataclass(frozen=True)
class Phase:
    """A stretch of the local training: its share of the steps, and whether its end is sent."""

    name: str = "train"
    share: float = 1.0
    snapshot: bool = False


@dataclass(frozen=True)
class Finish:
    """What a layer makes of its turn. An upload of None leaves it to the others."""

    upload: Tensor | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    private: Mapping[str, Value] = field(default_factory=dict)


@dataclass
class Round:
    """One device's turn in one round: what the hooks may look at while it goes on.

    `received` is the global model; `start` where training began; `model` where it is now.
    """

    seed: int
    number: int
    device: str
    hyper: Hyper
    counts: Tensor
    received: Tensor
    sent: Mapping[str, Tensor]
    private: Private
    net: FlatModel
    start: Tensor = field(default_factory=lambda: torch.empty(0))
    snapshot: Tensor | None = None
    phase: Phase = field(default_factory=Phase)
    steps: int = 0
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Tensor:
        return self.net.vector

    @property
    def layout(self) -> Layout:
        return self.net.layout

    @property
    def examples(self) -> int:
        return int(self.counts.sum())

    def generator(self, purpose: str) -> torch.Generator:
        """A stream of its own for each purpose: mixup must not change the order of batches."""
        return generator(self.seed, self.number, self.device, purpose)

    def seen_by(self, layer: str) -> Round:
        """This turn with the private state and the notes of one layer only."""
        return replace(
            self, private=self.private.of(layer), memo=self.memo.setdefault(layer, {})
        )


@dataclass(frozen=True)
class Merged:
    """The accepted updates of a round: their weighted mean, and the scalars by device."""

    mean: Tensor
    reports: Mapping[str, Mapping[str, float]]
    devices: int


State = Mapping[str, Tensor]
"""What a coordinator half remembers between rounds, by name; each as long as the model."""


@dataclass(frozen=True)
class Method:
    """A federated method. The defaults are FedAvg's: a method fills in only what it changes."""

    name: ClassVar[str] = "method"
    scalars: ClassVar[frozenset[str]] = frozenset()
    """Names of the numbers that leave the device beside those every method reports."""
    keeps: ClassVar[Mapping[str, Follows]] = {}
    """The private state: each piece's name, and what its keeping follows."""
    sends: ClassVar[tuple[str, ...]] = ()
    """Names of the vectors that travel with the model to the devices."""

    # The device half, in the order of a turn.

    def begin(self, r: Round, w: Tensor) -> Tensor:
        """The vector that local training starts from; `w` is what the layers before chose."""
        return w

    def phases(self, r: Round) -> Sequence[Phase]:
        return (Phase(),)

    def batch(self, r: Round, batch: Batch) -> Batch:
        return batch

    def objective(self, r: Round, out: Output, y: Tensor) -> Objective:
        return Objective()

    def pull(self, r: Round) -> Affine | None:
        return None

    def epoch_end(self, r: Round) -> None:
        """Called after each pass over the device's data."""

    def finish(self, r: Round) -> Finish:
        return Finish()

    def personal(self, r: Round) -> Tensor:
        """The model this device will use itself; `r.private` is what `finish` returned."""
        return r.model

    # The coordinator half.

    def weight(self, scalars: Mapping[str, float]) -> float:
        """How much an update counts; the weights of a round are normalised to sum to 1."""
        return scalars["examples"]

    def initial(self, layout: Layout) -> State:
        return {}

    def send(self, state: State) -> State:
        """The vectors that travel with the model: those that `sends` names."""
        return {}

    def step(self, w: Tensor, merged: Merged, state: State) -> tuple[Tensor, State]:
        """The next global model, from this one and the mean of the updates."""
        return merged.mean, state


def generator(seed: int, number: int, device: str, purpose: str) -> torch.Generator:
    """Randomness fixed by run, round, device and purpose, so that a repeated turn is the same."""
    digest = hashlib.sha256(f"{seed}/{number}/{device}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def _join(
    a: Tensor | None, b: Tensor | None, both: Callable[[Tensor, Tensor], Tensor]
) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return both(a, b)
