"""Composition: a stack of layers that behaves as one method, `fedprox(mu=0.1)+mixup`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fededge._internal.lazy_torch import Tensor, nn
from fededge.errors import MethodError, WireError
from fededge.flat import FlatModel, Layout, Vector, finite
from fededge.method.base import (
    Affine,
    Batch,
    Examples,
    Finish,
    Merged,
    Method,
    Objective,
    Output,
    Phase,
    State,
    Step,
    TurnView,
)
from fededge.method.layers import PERSONAL, SCALARS, Layers
from fededge.method.plugins import hook_errors, sha256_of
from fededge.method.private import Private, values_of
from fededge.method.ranges import EXAMPLES, Range, common_ranges
from fededge.method.turn import Hyper, Turn
from fededge.method.validation import (
    as_number,
    call_initial,
    call_ranges,
    call_send,
    call_step,
    call_sums,
    call_weight,
    check_phases,
)

__all__ = ["Stack"]

OPTIONAL = frozenset({"personal_accuracy"})
"""Scalars that a device without held-out examples leaves out."""

PLAIN = Objective()


@dataclass(frozen=True)
class Stack(Layers):
    """A composition: its layers chain starts and batches, and add up losses and pulls."""

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each plugin's file, by layer name."""
        found = {layer.name: sha256_of(type(layer)) for layer in self.layers}
        return {name: sha256 for name, sha256 in found.items() if sha256}

    @property
    def scalars(self) -> frozenset[str]:
        """Names of all scalars that may leave the device under this method."""
        return SCALARS.union(*(layer.scalars for layer in self.layers))

    @property
    def sends(self) -> tuple[str, ...]:
        """Names of all vectors that travel with the model to the devices."""
        return tuple(f"{layer.name}.{name}" for layer in self.layers for name in layer.sends)

    def needs(self, net: nn.Module) -> None:
        """Refuse a network that one of the layers cannot train."""
        for layer in self.layers:
            layer.needs(net)

    # The device half

    def phases(self, turn: Turn) -> tuple[Phase, ...]:
        owner = self.owner("phases")
        phases = tuple(owner.phases(TurnView(turn, owner.name)))
        check_phases(owner, phases)
        self._check_passes(phases, turn.hyper)
        return phases

    def _check_passes(self, phases: tuple[Phase, ...], hyper: Hyper) -> None:
        """Refuse phases of more epochs than `passes`: the coordinator bounds steps by it."""
        leading = [phase.epochs for phase in phases if not phase.aside]
        own = sum(epochs for epochs in leading if epochs is not None)
        taken, most = own + (hyper.epochs if None in leading else 0), self._passes(hyper)
        if taken > most:
            name = self.owner("phases").name
            raise MethodError(f"{name}: its phases take {taken} epochs, but `passes` allows {most}")

    def _passes(self, hyper: Hyper) -> int:
        owner = self.owner("phases")
        with hook_errors(owner, "passes"):
            return int(owner.passes(hyper))

    def begin(self, turn: Turn) -> Tensor:
        w = turn.received
        for layer in self.layers:
            w = layer.begin(TurnView(turn, layer.name), w)
        return w

    def pull(self, turn: Turn) -> Affine | None:
        pulls = [layer.pull(r) for layer, r in self.acting("pull", turn)]
        given = [pull for pull in pulls if pull is not None]
        return sum(given[1:], given[0]) if given else None

    def companions(self, turn: Turn) -> list[FlatModel]:
        return [m for layer, r in self.acting("companions", turn) for m in layer.companions(r)]

    def advance(self, turn: Turn, step: Step) -> Tensor | float:
        owner = self.owner("advance")
        return owner.advance(TurnView(turn, owner.name), step)

    def batch(self, turn: Turn, batch: Batch) -> Batch:
        for layer, r in self.acting("batch", turn):
            batch = layer.batch(r, batch)
        return batch

    def loss(self, turn: Turn, out: Output, batch: Batch) -> Tensor:
        objective = PLAIN
        for layer, r in self.acting("objective", turn):
            objective = objective + layer.objective(r, out, batch)
        return objective.mixed(out, batch.targets)

    def by_example(self) -> bool:
        """Return True if a batch can be split: every layer's loss is a mean over examples."""
        return all(layer.by_example() for layer in self.layers)

    def observe(self, turn: Turn, out: Output, batch: Batch) -> None:
        for layer, r in self.acting("observe", turn):
            layer.observe(r, Output(out.logits.detach(), out.features.detach()), batch)

    def epoch_end(self, turn: Turn) -> None:
        for layer, r in self.acting("epoch_end", turn):
            layer.epoch_end(r)

    def finish(self, turn: Turn) -> Finish:
        """Return one upload, all scalars and all private state; the caller copies the vectors."""
        upload = turn.net.vector
        scalars: dict[str, float] = {}
        private = turn.private
        for layer in self.layers:
            part = layer.finish(TurnView(turn, layer.name))
            upload = upload if part.upload is None else part.upload
            undeclared = (part.private.keys() - layer.keeps.keys()) | (
                part.scalars.keys() - layer.scalars
            )
            if undeclared:
                raise MethodError(f"{layer.name} does not declare {sorted(undeclared)}")
            scalars |= self._checked_scalars(layer, part.scalars, turn)
            private = private.updated(layer.name, part.private)
        return Finish(upload, scalars, private)

    def _checked_scalars(
        self, layer: Method, scalars: Mapping[str, object], turn: Turn
    ) -> dict[str, float]:
        """Return a layer's scalars as floats; refuse those that the coordinator would refuse."""
        numbers = {name: as_number(layer, name, value) for name, value in scalars.items()}
        ranges = call_ranges(layer, turn.hyper, len(turn.data.y), turn.steps)
        for name, value in numbers.items():
            if value not in ranges[name]:
                raise MethodError(
                    f"{layer.name}: its '{name}' must be {ranges[name]}, got {value}; the training "
                    "diverged, or the method's `ranges` must allow more"
                )
        return numbers

    def kept_at_once(self, before: Private, after: Private) -> Private:
        """Return the private state to save before the update is accepted.

        Values that follow the training are new; values that follow the update are the old ones.
        """
        waits = self._pieces("update")
        kept = {name: value for name, value in after.items() if name not in waits}
        return Private({**kept, **{k: v for k, v in before.items() if k in waits}})

    def kept_anew(self, before: Private) -> Private:
        """Return the private state of an earlier method that this one goes on with.

        Values of its own layers that follow the training stay. Those that follow the update go, as
        the coordinator's half does, and so do those of other layers.
        """
        stays = self._pieces("training")
        return Private({name: value for name, value in before.items() if name in stays})

    def _pieces(self, rule: str) -> set[str]:
        return {f"{one.name}.{k}" for one in self.layers for k, r in one.keeps.items() if r == rule}

    def personal(self, turn: Turn) -> Tensor:
        owner = self.owner(*PERSONAL)
        return owner.personal(TurnView(turn, owner.name))

    @property
    def refreshes(self) -> bool:
        """True if a device that sits a round out may get a new personal model."""
        return bool(self.overriding["refreshed"])

    def refreshed(self, turn: Turn) -> Tensor | None:
        owner = self.owner(*PERSONAL)
        return owner.refreshed(TurnView(turn, owner.name))

    def network(self, net: nn.Module, data: Examples) -> nn.Module:
        return self.owner(*PERSONAL).network(net, data)

    # The coordinator half

    def ranges(self, hyper: Hyper, examples: int, steps: int) -> dict[str, Range]:
        """Return every scalar's range, for a device that reports these examples and steps."""
        ranges = common_ranges(hyper, self._passes(hyper), examples)
        for layer in self.layers:
            ranges |= call_ranges(layer, hyper, examples, steps)
        return ranges

    def check(self, scalars: Mapping[str, float], hyper: Hyper) -> None:
        """Refuse scalars that no honest device reports under this method and this training."""
        missing = sorted(self.scalars - OPTIONAL - scalars.keys())
        if missing:
            raise WireError(f"the report lacks {', '.join(missing)}")
        foreign = sorted(scalars.keys() - self.scalars)[:3]  # a reason must fit into a reply
        if foreign:
            raise WireError(f"the method has no scalars {', '.join(foreign)}")
        try:
            self._check_ranges(scalars, hyper)
            self.weight(scalars)
            self.sums(scalars)
        except MethodError as error:
            raise WireError(f"the report's scalars are invalid ({error})") from None

    def _check_ranges(self, scalars: Mapping[str, float], hyper: Hyper) -> None:
        """Check the counts first: the other ranges depend on them."""
        _check_range(scalars, "examples", EXAMPLES)
        examples = int(scalars["examples"])
        _check_range(scalars, "steps", common_ranges(hyper, self._passes(hyper), examples)["steps"])
        for name, allowed in self.ranges(hyper, examples, int(scalars["steps"])).items():
            _check_range(scalars, name, allowed)

    def with_fewer_examples(
        self, scalars: Mapping[str, float], examples: float, hyper: Hyper
    ) -> dict[str, float]:
        """Return the scalars with fewer examples; clamp the others to the ranges of those."""
        count = math.ceil(examples)
        steps = min(
            scalars["steps"], common_ranges(hyper, self._passes(hyper), count)["steps"].high
        )
        ranges = self.ranges(hyper, count, int(steps)).items()
        bounded = {n: min(max(scalars[n], r.low), r.high) for n, r in ranges if n in scalars}
        return {**scalars, **bounded, "examples": examples}

    def weight(self, scalars: Mapping[str, float]) -> float:
        owner = self.owner("weight")
        if not scalars["examples"]:
            return 0.0
        equal = not self.overriding["weight"] and any(layer.equal for layer in self.layers)
        return 1.0 if equal else call_weight(owner, scalars)

    def sums(self, scalars: Mapping[str, float]) -> Mapping[str, float]:
        return call_sums(self.owner("step", "sums"), scalars)

    def initial(self, layout: Layout) -> State:
        state: dict[str, Vector] = {}
        for layer in self.layers:
            state |= _prefixed(layer, call_initial(layer, layout))
        self._check_sent(state, layout.size)
        return state

    def send(self, state: State) -> State:
        vectors: dict[str, Vector] = {}
        for layer in self.layers:
            vectors |= _prefixed(layer, call_send(layer, values_of(state, layer.name)))
        return vectors

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        owner = self.owner("step", "sums")
        model, new = call_step(owner, w, merged, values_of(state, owner.name))
        state = {**state, **_prefixed(owner, new)}
        self._check_sent(state, len(w))
        return model, state

    def _check_sent(self, state: State, size: int) -> None:
        """Refuse method state that cannot be sent, while the previous state is still there."""
        for name, vector in self.send(state).items():
            if len(vector) != size:
                raise MethodError(
                    f"'{name}' must have {size} numbers to be sent, got {len(vector)}"
                )
            if not finite(vector):
                raise MethodError(f"'{name}' has numbers that are not finite and cannot be sent")


def _check_range(scalars: Mapping[str, float], name: str, allowed: Range) -> None:
    if name in scalars and scalars[name] not in allowed:
        raise WireError(f"the report's {name} must be {allowed}, got {scalars[name]}")


def _prefixed(layer: Method, vectors: State) -> State:
    return {f"{layer.name}.{name}": value for name, value in vectors.items()}
