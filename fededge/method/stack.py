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
    Round,
    State,
    Step,
)
from fededge.method.layers import PERSONAL, SCALARS, Layers
from fededge.method.plugins import calling, sha256_of
from fededge.method.private import Private, Value
from fededge.method.ranges import EXAMPLES, Range, common
from fededge.method.turn import Hyper, Turn
from fededge.method.validation import (
    factors,
    first_state,
    number,
    ranges_of,
    sent,
    stepped,
    weight,
)

__all__ = ["Stack"]

OPTIONAL = frozenset({"personal_accuracy"})
"""What a device without held-out examples leaves out."""

PLAIN = Objective()


@dataclass(frozen=True)
class Stack(Layers):
    """All layers at once: starts and batches wrap each other, losses and pulls add up."""

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of the file of each layer that is a user's own, by its name."""
        found = {layer.name: sha256_of(type(layer)) for layer in self.layers}
        return {name: sha256 for name, sha256 in found.items() if sha256}

    @property
    def scalars(self) -> frozenset[str]:
        """Every number that may leave the device under this method, by name."""
        return SCALARS.union(*(layer.scalars for layer in self.layers))

    @property
    def sends(self) -> tuple[str, ...]:
        """Every vector that travels with the model to the devices, by name."""
        return tuple(f"{layer.name}.{name}" for layer in self.layers for name in layer.sends)

    def needs(self, net: nn.Module) -> None:
        """Refuse a network that one of the layers cannot train."""
        for layer in self.layers:
            layer.needs(net)

    # The device half

    def phases(self, turn: Turn) -> tuple[Phase, ...]:
        owner = self.owner("phases")
        phases = tuple(owner.phases(Round(turn, owner.name)))
        if tuple(phase.name for phase in phases) != owner.phase_names:
            raise MethodError(f"{owner.name} has other phases than its phase_names say")
        if tuple(phase.name for phase in phases if phase.aside) != owner.aside_names:
            raise MethodError(f"{owner.name} has other phases aside than its aside_names say")
        shares = [phase.share for phase in phases if phase.epochs is None]
        if shares and not math.isclose(sum(shares), 1.0):
            raise MethodError(f"the shares of {owner.name}'s phases sum to {sum(shares)}, not to 1")
        for phase in phases:
            if phase.start is not None and not phase.aside:
                raise MethodError(
                    f"{owner.name}: phase '{phase.name}' has a start but is not aside"
                )
        self._check_passes(phases, turn.hyper)
        return phases

    def _check_passes(self, phases: tuple[Phase, ...], hyper: Hyper) -> None:
        """The coordinator bounds the steps of a report by `passes`."""
        leading = [phase.epochs for phase in phases if not phase.aside]
        own = sum(epochs for epochs in leading if epochs is not None)
        taken, most = own + (hyper.epochs if None in leading else 0), self._passes(hyper)
        if taken > most:
            name = self.owner("phases").name
            raise MethodError(f"{name}: its phases take {taken} passes, but `passes` says {most}")

    def _passes(self, hyper: Hyper) -> int:
        owner = self.owner("phases")
        with calling(owner, "passes"):
            return int(owner.passes(hyper))

    def begin(self, turn: Turn) -> Tensor:
        w = turn.received
        for layer in self.layers:
            w = layer.begin(Round(turn, layer.name), w)
        return w

    def pull(self, turn: Turn) -> Affine | None:
        pulls = [layer.pull(r) for layer, r in self.acting("pull", turn)]
        given = [pull for pull in pulls if pull is not None]
        return sum(given[1:], given[0]) if given else None

    def companions(self, turn: Turn) -> list[FlatModel]:
        return [m for layer, r in self.acting("companions", turn) for m in layer.companions(r)]

    def advance(self, turn: Turn, step: Step) -> float:
        owner = self.owner("advance")
        return owner.advance(Round(turn, owner.name), step)

    def batch(self, turn: Turn, batch: Batch) -> Batch:
        for layer, r in self.acting("batch", turn):
            batch = layer.batch(r, batch)
        return batch

    def loss(self, turn: Turn, out: Output, batch: Batch) -> Tensor:
        objective = PLAIN
        for layer, r in self.acting("objective", turn):
            objective = objective + layer.objective(r, out, batch)
        return objective.mixed(out, batch.targets)

    def observe(self, turn: Turn, out: Output, batch: Batch) -> None:
        for layer, r in self.acting("observe", turn):
            layer.observe(r, Output(out.logits.detach(), out.features.detach()), batch)

    def epoch_end(self, turn: Turn) -> None:
        for layer, r in self.acting("epoch_end", turn):
            layer.epoch_end(r)

    def finish(self, turn: Turn) -> Finish:
        """One upload, all scalars, all private state; what is new in it is a copy."""
        upload = turn.net.vector
        scalars: dict[str, float] = {}
        private = turn.private
        for layer in self.layers:
            part = layer.finish(Round(turn, layer.name))
            upload = upload if part.upload is None else part.upload
            undeclared = (part.private.keys() - layer.keeps.keys()) | (
                part.scalars.keys() - layer.scalars
            )
            if undeclared:
                raise MethodError(f"{layer.name} does not declare {sorted(undeclared)}")
            scalars |= self._reported(layer, part.scalars, turn)
            private = private.updated(layer.name, {k: _own(v) for k, v in part.private.items()})
        return Finish(upload, scalars, private)

    def _reported(
        self, layer: Method, scalars: Mapping[str, object], turn: Turn
    ) -> dict[str, float]:
        """A layer's scalars as numbers that the coordinator will take."""
        numbers = {name: number(layer, name, value) for name, value in scalars.items()}
        ranges = ranges_of(layer, turn.hyper, len(turn.data.y), turn.steps)
        for name, value in numbers.items():
            if value not in ranges[name]:
                raise MethodError(
                    f"{layer.name}: its '{name}' must be {ranges[name]}, got {value}; the training "
                    "diverged, or the method's `ranges` must allow more"
                )
        return numbers

    def kept_at_once(self, before: Private, after: Private) -> Private:
        """The private state until the coordinator has accepted: new where it follows training."""
        waits = {
            f"{layer.name}.{piece}"
            for layer in self.layers
            for piece, rule in layer.keeps.items()
            if rule == "update"
        }
        kept = {name: value for name, value in after.items() if name not in waits}
        return Private({**kept, **{k: v for k, v in before.items() if k in waits}})

    def personal(self, turn: Turn) -> Tensor:
        owner = self.owner(*PERSONAL)
        return owner.personal(Round(turn, owner.name))

    @property
    def refreshes(self) -> bool:
        """Whether a device that sits a round out may have a new model of its own."""
        return bool(self.filled["refreshed"])

    def refreshed(self, turn: Turn) -> Tensor | None:
        owner = self.owner(*PERSONAL)
        return owner.refreshed(Round(turn, owner.name))

    def network(self, net: nn.Module, data: Examples) -> nn.Module:
        return self.owner(*PERSONAL).network(net, data)

    # The coordinator half

    def ranges(self, hyper: Hyper, examples: int, steps: int) -> dict[str, Range]:
        """The range of every scalar, of a device that reports so many examples and steps."""
        ranges = common(hyper, self._passes(hyper), examples)
        for layer in self.layers:
            ranges |= ranges_of(layer, hyper, examples, steps)
        return ranges

    def check(self, scalars: Mapping[str, float], hyper: Hyper) -> None:
        """Refuse a report that no honest device makes under this method and this training."""
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
            raise WireError(f"the report's scalars give no weight ({error})") from None

    def _check_ranges(self, scalars: Mapping[str, float], hyper: Hyper) -> None:
        """Counts come first: the other ranges follow from them."""
        _check_range(scalars, "examples", EXAMPLES)
        examples = int(scalars["examples"])
        _check_range(scalars, "steps", common(hyper, self._passes(hyper), examples)["steps"])
        for name, allowed in self.ranges(hyper, examples, int(scalars["steps"])).items():
            _check_range(scalars, name, allowed)

    def of_fewer(
        self, scalars: Mapping[str, float], examples: float, hyper: Hyper
    ) -> dict[str, float]:
        """A report as that of a device with fewer examples: what no such device says is lowered."""
        count = math.ceil(examples)
        steps = min(scalars["steps"], common(hyper, self._passes(hyper), count)["steps"].high)
        ranges = self.ranges(hyper, count, int(steps)).items()
        bounded = {n: min(max(scalars[n], r.low), r.high) for n, r in ranges if n in scalars}
        return {**scalars, **bounded, "examples": examples}

    def weight(self, scalars: Mapping[str, float]) -> float:
        owner = self.owner("weight")
        if not scalars["examples"]:
            return 0.0
        equal = not self.filled["weight"] and any(layer.equal for layer in self.layers)
        return 1.0 if equal else weight(owner, scalars)

    def sums(self, scalars: Mapping[str, float]) -> Mapping[str, float]:
        return factors(self.owner("step", "sums"), scalars)

    def initial(self, layout: Layout) -> State:
        state: dict[str, Vector] = {}
        for layer in self.layers:
            state |= _named(layer, first_state(layer, layout))
        self._check_sent(state, layout.size)
        return state

    def send(self, state: State) -> State:
        vectors: dict[str, Vector] = {}
        for layer in self.layers:
            vectors |= _named(layer, sent(layer, _of(state, layer.name)))
        return vectors

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        owner = self.owner("step", "sums")
        model, new = stepped(owner, w, merged, _of(state, owner.name))
        state = {**state, **_named(owner, new)}
        self._check_sent(state, len(w))
        return model, state

    def _check_sent(self, state: State, size: int) -> None:
        """Refuse a memory that cannot travel while there is one that can."""
        for name, given in self.send(state).items():
            if len(given) != size:
                raise MethodError(f"'{name}' would be sent with {len(given)} numbers, not {size}")
            if not finite(given):
                raise MethodError(f"'{name}' would be sent with numbers that are not finite")


def _check_range(scalars: Mapping[str, float], name: str, allowed: Range) -> None:
    if name in scalars and scalars[name] not in allowed:
        raise WireError(f"the report's {name} must be {allowed}, got {scalars[name]}")


def _own(value: Value) -> Value:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _named(layer: Method, vectors: State) -> State:
    return {f"{layer.name}.{name}": value for name, value in vectors.items()}


def _of(state: State, layer: str) -> State:
    prefix = f"{layer}."
    return {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
