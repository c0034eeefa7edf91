"""The method interface: the hooks of the device half and of the coordinator half, and their types.

A method is a frozen dataclass of hyper-parameters. State comes in as an argument, most of it in
`TurnView`, and leaves as a return value. A method knows nothing of brokers, files or threads.
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
from fededge.method.turn import Batch, Examples, Hyper, Phase, TurnView

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
    "State",
    "Step",
    "Teacher",
    "Term",
    "TurnView",
    "forward",
]

Follows = Literal["training", "update"]
"""When private state is saved: after the training, or once the update is accepted."""

State = Mapping[str, Vector]
"""Method state: the coordinator half's vectors between rounds, by name; model-sized."""


class Step(Protocol):
    """The parts of one local step, for a method that arranges them itself."""

    def batch(self) -> Batch:
        """Return the next batch, after the layers' `batch` hooks."""

    def gradient(self, batch: Batch) -> Tensor:
        """Fill the gradients of the network and its companions; return the loss.

        The loss stays on the training's device: a step that reads it would wait for the device.
        """

    def apply(self, lr: float | None = None) -> None:
        """Take an SGD step, with the layers' pulls, momentum and weight decay."""


@dataclass(frozen=True, eq=False)
class Finish:
    """A layer's result of a turn. Without an `upload` of any layer, `r.model` is uploaded."""

    upload: Tensor | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    private: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Merged:
    """The aggregate of a round's updates, and each participant's scalars.

    Attributes:
        mean: the mean of the models, weighted by the method.
        scalars: the scalars of each participant, by device.
        devices: the number of devices in the federation, participants or not.
        layout: the layout of all these vectors.
        sums: Σ factor · (model - w), for each factor that the method's `sums` returns.
    """

    mean: Vector
    scalars: Mapping[str, Mapping[str, float]]
    devices: int
    layout: Layout
    sums: Mapping[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A federated method. The defaults are FedAvg's: a method overrides only what it changes."""

    name: ClassVar[str] = "method"
    scalars: ClassVar[frozenset[str]] = frozenset()
    """Names of the method's own scalars: they leave the device beside the common ones."""
    keeps: ClassVar[Mapping[str, Follows]] = {}
    """Names of the private state, and when each is saved."""
    sends: ClassVar[tuple[str, ...]] = ()
    """Names of the vectors that travel with the model to the devices."""
    phase_names: ClassVar[tuple[str, ...]] = ("train",)
    """Names of the phases that `phases` returns, in order."""
    aside_names: ClassVar[tuple[str, ...]] = ()
    """Phases that do not affect the uploaded model."""
    equal: ClassVar[bool] = False
    """True: updates weigh the same where no layer has a `weight`. False: by examples."""

    def __str__(self) -> str:
        """Return the method as written in a configuration, with every option."""
        options = ", ".join(f"{k}={_literal(v)}" for k, v in dataclasses.asdict(self).items())
        return f"{self.name}({options})" if options else self.name

    def require(self, holds: bool, rule: str) -> None:
        """Refuse a hyper-parameter unless the condition `holds`; for `__post_init__`."""
        if not holds:
            raise MethodError(f"{self}: {rule}")

    def needs(self, net: nn.Module) -> None:
        """Refuse a network that the method cannot train, with a MethodError that says what to do.

        Called when a configuration is read: `net` may be on the meta device, without values.
        """

    # The device half, in the order of a turn.

    def phases(self, r: TurnView) -> Sequence[Phase]:
        """Return the phases of the local training."""
        return (Phase(),)

    def begin(self, r: TurnView, w: Tensor) -> Tensor:
        """Return the vector that local training starts from; `w` is the earlier layers' choice."""
        return w

    def pull(self, r: TurnView) -> Affine | None:
        """Return the correction of every gradient in the phase that begins."""
        return None

    def companions(self, r: TurnView) -> Sequence[FlatModel]:
        """Return the device's own models that the phase trains too, by the same loss and SGD."""
        return ()

    def advance(self, r: TurnView, step: Step) -> Tensor | float:
        """Take one local step; return its loss, as `step.gradient` gives it."""
        loss = step.gradient(step.batch())
        step.apply()
        return loss

    def batch(self, r: TurnView, batch: Batch) -> Batch:
        """Return the batch to train on, such as a mixture of this one."""
        return batch

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        """Return the layer's part of the loss; without side effects: other layers call it too."""
        return Objective()

    def by_example(self) -> bool:
        """Return True if the loss is a mean over examples: a batch can be split to save memory."""
        return True

    def observe(self, r: TurnView, out: Output, batch: Batch) -> None:
        """Record statistics of a training step's output, without gradients."""

    def epoch_end(self, r: TurnView) -> None:
        """Called after each pass over the device's data."""

    def finish(self, r: TurnView) -> Finish:
        """Return the upload, scalars and private state of the turn."""
        return Finish()

    def personal(self, r: TurnView) -> Tensor:
        """Return the personal model, which the device deploys; `r.private` is `finish`'s."""
        return r.model

    def refreshed(self, r: TurnView) -> Tensor | None:
        """Return the personal model after a round that the device sat out; None: unchanged."""
        return None

    def network(self, net: nn.Module, data: Examples) -> nn.Module:
        """Return the network of the personal model: `net` itself, or a new module.

        A new module may hold a copy of `net`; it takes the same inputs and returns logits.
        """
        return net

    # The coordinator half. Its vectors are numpy arrays: a coordinator runs without torch.

    def passes(self, hyper: Hyper) -> int:
        """Return the most epochs that the phases of the uploaded model take together.

        A method whose `phases` set their own epochs overrides it.
        """
        return hyper.epochs

    def ranges(self, hyper: Hyper, examples: int, steps: int) -> Mapping[str, Range]:
        """Return the range of each of the method's scalars; a value outside it is refused.

        Args:
            hyper: the training that the coordinator asks for.
            examples: the number of examples that the device reports.
            steps: the reported number of steps, within what `hyper`, `passes` and `examples` allow.
        """
        return {}

    def weight(self, scalars: Mapping[str, float]) -> float:
        """Return an update's weight; the weights of a round are normalised to sum to 1.

        Not called for a device without examples: its weight is 0.
        """
        return scalars["examples"]

    def sums(self, scalars: Mapping[str, float]) -> Mapping[str, float]:
        """Return this update's factor in each further sum that `step` needs, by name."""
        return {}

    def initial(self, layout: Layout) -> State:
        """Return the method state before the first round."""
        return {}

    def send(self, state: State) -> State:
        """Return the vectors that travel with the model: those that `sends` names."""
        return {}

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        """Return the next global model and method state.

        The caller replaces the model's running statistics (batch norm) with the mean's.
        """
        return merged.mean, state


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
