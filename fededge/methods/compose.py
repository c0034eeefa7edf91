"""Composition: a stack of layers that behaves as one method, `fedprox(mu=0.1)+mixup`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fededge.errors import MethodError, WireError
from fededge.flat import FlatModel, Layout, Vector, as_numpy
from fededge.late import Tensor, nn
from fededge.methods.base import (
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
from fededge.methods.layers import PERSONAL, SCALARS, Layers
from fededge.methods.own import sha256_of
from fededge.methods.private import Private, Value
from fededge.methods.turn import Turn

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
        return phases

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
            scalars |= {name: _number(layer, name, v) for name, v in part.scalars.items()}
            private = private.updated(layer.name, {k: _own(v) for k, v in part.private.items()})
        return Finish(upload, scalars, private)

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

    def check(self, scalars: Mapping[str, float]) -> None:
        """Refuse a report that no honest device under this method makes."""
        missing = sorted(self.scalars - OPTIONAL - scalars.keys())
        if missing:
            raise WireError(f"the report lacks {', '.join(missing)}")
        for name in ("examples", "steps"):
            if not (0 <= scalars[name] <= 2**53 and scalars[name] == int(scalars[name])):
                raise WireError(f"the report's {name} is {scalars[name]}, not a count")
        try:
            numbers = [self.weight(scalars), *self.sums(scalars).values()]
        except (ArithmeticError, MethodError) as error:
            raise WireError(f"the report's scalars give no weight ({error})") from None
        if not all(map(math.isfinite, numbers)):
            raise WireError("the report's scalars give factors that are not finite")

    def weight(self, scalars: Mapping[str, float]) -> float:
        owner = self.owner("weight")
        if not scalars["examples"]:
            return 0.0
        equal = not self.filled["weight"] and any(layer.equal for layer in self.layers)
        weight = 1.0 if equal else owner.weight(scalars)
        if not (math.isfinite(weight) and weight >= 0):
            raise MethodError(f"{owner.name} gives an update the weight {weight}")
        return weight

    def sums(self, scalars: Mapping[str, float]) -> Mapping[str, float]:
        return self.owner("step", "sums").sums(scalars)

    def initial(self, layout: Layout) -> State:
        return {
            f"{layer.name}.{name}": _vector(layer, name, value)
            for layer in self.layers
            for name, value in layer.initial(layout).items()
        }

    def send(self, state: State) -> State:
        sent: dict[str, Vector] = {}
        for layer in self.layers:
            given = layer.send(_of(state, layer.name))
            if given.keys() != set(layer.sends):
                raise MethodError(f"{layer.name} sends {sorted(given)}, but declares {layer.sends}")
            sent |= {f"{layer.name}.{n}": _vector(layer, n, v) for n, v in given.items()}
        return sent

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        owner = self.owner("step", "sums")
        given: object = owner.step(w, merged, _of(state, owner.name))
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)):
            raise MethodError(f"{owner.name}: step must give (model, state), not {given!r:.80}")
        model, new = given
        w = _vector(owner, "model", model, len(w))
        if model is not merged.mean:
            w = w.copy()
            for entry in merged.layout.entries:
                if not entry.trainable:
                    w[entry.span] = merged.mean[entry.span]
        kept = {f"{owner.name}.{name}": _vector(owner, name, v) for name, v in new.items()}
        return w, {**state, **kept}


def _number(layer: Method, name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # a method may be anybody's
    except (TypeError, ValueError, RuntimeError):
        raise MethodError(f"{layer.name} reports '{name}', which is not a number") from None


def _vector(layer: Method, name: str, value: object, size: int | None = None) -> Vector:
    """What a coordinator half gives, as numpy has it: a user's own method may think in tensors."""
    array = as_numpy(value.float()) if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.ndim != 1:
        raise MethodError(f"{layer.name} gives a '{name}' that is no vector: {value!r:.80}")
    if size is not None and len(array) != size:
        raise MethodError(f"{layer.name} gives a '{name}' of {len(array)} numbers, not {size}")
    return np.ascontiguousarray(array, np.float32)


def _own(value: Value) -> Value:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _of(state: State, layer: str) -> State:
    prefix = f"{layer}."
    return {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
