"""What a method may fill in: a device half, a coordinator half, and the few types they speak in.

A method is a frozen dataclass of hyper-parameters. Whatever changes comes in as an argument, most
of it in `Round`, and leaves as a return value. It knows nothing of brokers, files or threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from fededge._internal.lazy_torch import Tensor, nn
from fededge.errors import MethodError
from fededge.flat import FlatModel, Layout, Vector
from fededge.method.objective import Affine, Objective, Output, Term, forward
from fededge.method.private import Private, Value
from fededge.method.ranges import Range
from fededge.method.teacher import Teacher
from fededge.method.turn import Batch, Examples, Hyper, Phase, Round

__all__ = [
    "Affine",
    "Batch",
    "Examples",
    "Finish",
    "Follows",
    "Hyper",
    "Merged",
    "Method",
    "Objective",
    "Output",
    "Phase",
    "Private",
    "Range",
    "Round",
    "State",
    "Step",
    "Teacher",
    "Term",
    "forward",
]

Follows = Literal["training", "update"]
"""When a piece of private state is kept: at once, or only once the coordinator has accepted."""

State = Mapping[str, Vector]
"""What a coordinator half remembers between rounds, by name; each as long as the model."""


class Step(Protocol):
    """The pieces of one local step, for a method that puts them together in its own way."""

    def batch(self) -> Batch:
        """The next batch, as the layers' `batch` hooks made it."""

    def gradient(self, batch: Batch) -> float:
        """Fill the gradient of the network and its companions; the loss is returned."""

    def apply(self, lr: float | None = None) -> None:
        """Step along the gradient, with the layers' pulls, momentum and weight decay."""


@dataclass(frozen=True, eq=False)
class Finish:
    """What a layer makes of its turn. An upload of None leaves it to the others: `r.model`."""

    upload: Tensor | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    private: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Merged:
    """The updates of a round that count: all in one, and the scalars by device.

    Attributes:
        mean: of the models, by the method's weights.
        reports: the scalars of each device.
        devices: how many devices the federation has, taking part or not.
        layout: of all these vectors.
        sums: Σ factor · (model - w), for the factors that the method's `sums` gives.
    """

    mean: Vector
    reports: Mapping[str, Mapping[str, float]]
    devices: int
    layout: Layout
    sums: Mapping[str, Vector] = field(default_factory=dict)


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
    phase_names: ClassVar[tuple[str, ...]] = ("train",)
    """Names of the phases that `phases` gives, in their order."""
    aside_names: ClassVar[tuple[str, ...]] = ()
    """Those of them that are aside."""
    equal: ClassVar[bool] = False
    """Whether updates count the same where no layer has a `weight`; if not, by their examples."""

    def __str__(self) -> str:
        """The method as it is written in a configuration, with every option."""
        options = ", ".join(f"{k}={_literal(v)}" for k, v in dataclasses.asdict(self).items())
        return f"{self.name}({options})" if options else self.name

    def require(self, holds: bool, rule: str) -> None:
        """Refuse a hyper-parameter; for `__post_init__`."""
        if not holds:
            raise MethodError(f"{self}: {rule}")

    def needs(self, net: nn.Module) -> None:
        """Refuse a network that the method cannot train, with a MethodError that says what to do.

        Asked as soon as a configuration is read: `net` may still be without values.
        """

    # The device half, in the order of a turn.

    def phases(self, r: Round) -> Sequence[Phase]:
        return (Phase(),)

    def begin(self, r: Round, w: Tensor) -> Tensor:
        """The vector that local training starts from; `w` is what the layers before chose."""
        return w

    def pull(self, r: Round) -> Affine | None:
        """The correction of every gradient in the phase that begins now."""
        return None

    def companions(self, r: Round) -> Sequence[FlatModel]:
        """The device's own models that the phase trains too, by the same loss and optimiser."""
        return ()

    def advance(self, r: Round, step: Step) -> float:
        """One local step; returns its loss."""
        loss = step.gradient(step.batch())
        step.apply()
        return loss

    def batch(self, r: Round, batch: Batch) -> Batch:
        return batch

    def objective(self, r: Round, out: Output, batch: Batch) -> Objective:
        """The layer's part in the loss; it takes no notes, for others may ask for it too."""
        return Objective()

    def observe(self, r: Round, out: Output, batch: Batch) -> None:
        """Take notes of a training step's output, outside of the gradient."""

    def epoch_end(self, r: Round) -> None:
        """Called after each pass over the device's data."""

    def finish(self, r: Round) -> Finish:
        return Finish()

    def personal(self, r: Round) -> Tensor:
        """The model this device will use itself; `r.private` is what `finish` returned."""
        return r.model

    def refreshed(self, r: Round) -> Tensor | None:
        """The device's own model after a round that it sat out; None: as its last turn left it."""
        return None

    def network(self, net: nn.Module, data: Examples) -> nn.Module:
        """The network that `personal` gives the values of; `net` itself, or a new module.

        A new one may hold a copy of `net`; it takes the same inputs and gives logits.
        """
        return net

    # The coordinator half: its vectors are arrays of numpy, for a coordinator has no need of torch.

    def passes(self, hyper: Hyper) -> int:
        """The most passes over the data that the phases leading to the sent model take together.

        A method whose `phases` have epochs of their own fills it in.
        """
        return hyper.epochs

    def ranges(self, hyper: Hyper, examples: int, steps: int) -> Mapping[str, Range]:
        """The range of each of the method's scalars; a report with one outside is refused.

        Args:
            hyper: the training that the coordinator asks for.
            examples: as many as the device reports.
            steps: as many as it reports; at most what `hyper`, `passes` and `examples` allow.
        """
        return {}

    def weight(self, scalars: Mapping[str, float]) -> float:
        """How much an update counts; the weights of a round are normalised to sum to 1.

        Not asked for a device without examples: it counts nothing.
        """
        return scalars["examples"]

    def sums(self, scalars: Mapping[str, float]) -> Mapping[str, float]:
        """Further sums for `step`, by name: the factor of this update's change in each."""
        return {}

    def initial(self, layout: Layout) -> State:
        return {}

    def send(self, state: State) -> State:
        """The vectors that travel with the model: those that `sends` names."""
        return {}

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        """The next global model, from this one and the mean of the updates.

        Running statistics (batch norm) are the mean's, whatever is returned for them.
        """
        return merged.mean, state


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
