"""Composition: `fedprox(mu=0.1)+mixup` as a stack of layers that behaves as one method."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fededge.errors import MethodError
from fededge.flat import Layout
from fededge.methods.base import (
    Affine,
    Batch,
    Finish,
    Merged,
    Method,
    Objective,
    Output,
    Phase,
    Round,
    State,
)
from fededge.methods.private import Private

__all__ = ["Stack", "parse"]

SCALARS = frozenset({"examples", "steps", "loss", "personal_accuracy"})
"""What every device reports of a turn, whatever the method."""

ONE_OWNER = {
    "phases": "the phases of the local training",
    "personal": "the personal model",
    "weight": "the weight of an update",
    "step": "the step to the next global model",
}


@dataclass(frozen=True)
class Stack:
    """Methods in order: starts and batches wrap each other, losses and pulls add up,
    and phases, personal model, weight and step each have one owner."""

    layers: tuple[Method, ...]

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.layers]
        if len(set(names)) < len(names):
            raise MethodError(f"method '{'+'.join(names)}' names a layer twice")
        for hook in ONE_OWNER:
            self._owner(hook)

    def __str__(self) -> str:
        return "+".join(_text(layer) for layer in self.layers)

    @property
    def scalars(self) -> frozenset[str]:
        """Every number that may leave the device under this method, by name."""
        return SCALARS.union(*(layer.scalars for layer in self.layers))

    @property
    def sends(self) -> tuple[str, ...]:
        """Every vector that travels with the model to the devices, by name."""
        return tuple(name for layer in self.layers for name in layer.sends)

    def begin(self, r: Round) -> Tensor:
        w = r.received
        for layer in self.layers:
            w = layer.begin(r.seen_by(layer.name), w)
        return w

    def phases(self, r: Round) -> Sequence[Phase]:
        owner = self._owner("phases")
        return owner.phases(r.seen_by(owner.name))

    def batch(self, r: Round, batch: Batch) -> Batch:
        for layer in self.layers:
            batch = layer.batch(r.seen_by(layer.name), batch)
        return batch

    def loss(self, r: Round, out: Output, batch: Batch) -> Tensor:
        parts = [self._objective(r, out, y).loss(out, y) * share for y, share in batch.targets]
        return parts[0] if len(parts) == 1 else sum(parts[1:], parts[0])

    def _objective(self, r: Round, out: Output, y: Tensor) -> Objective:
        total = Objective()
        for layer in self.layers:
            total = total + layer.objective(r.seen_by(layer.name), out, y)
        return total

    def pull(self, r: Round) -> Affine | None:
        pulls = [layer.pull(r.seen_by(layer.name)) for layer in self.layers]
        given = [pull for pull in pulls if pull is not None]
        return sum(given[1:], given[0]) if given else None

    def epoch_end(self, r: Round) -> None:
        for layer in self.layers:
            layer.epoch_end(r.seen_by(layer.name))

    def finish(self, r: Round) -> Finish:
        """One upload (the snapshot, or the model as it stands), all scalars, all private state."""
        upload = r.model if r.snapshot is None else r.snapshot
        scalars: dict[str, float] = {}
        private = r.private
        for layer in self.layers:
            part = layer.finish(r.seen_by(layer.name))
            upload = upload if part.upload is None else part.upload
            scalars |= part.scalars
            undeclared = part.private.keys() - layer.keeps.keys()
            if undeclared:
                raise MethodError(f"{layer.name} keeps undeclared state: {sorted(undeclared)}")
            private = private.updated(layer.name, part.private)
        return Finish(upload.clone(), scalars, private)

    def kept_at_once(self, before: Private, after: Private) -> Private:
        """The private state until the coordinator has accepted: new where it follows training."""
        follows = {
            f"{layer.name}.{piece}": rule
            for layer in self.layers
            for piece, rule in layer.keeps.items()
        }
        kept = {k: v for k, v in after.items() if follows[k] == "training"}
        return Private({**{k: v for k, v in before.items() if k not in kept}, **kept})

    def personal(self, r: Round) -> Tensor:
        owner = self._owner("personal")
        return owner.personal(r.seen_by(owner.name)).clone()

    def weight(self, scalars: Mapping[str, float]) -> float:
        owner = self._owner("weight")
        weight = owner.weight(scalars)
        if not (math.isfinite(weight) and weight >= 0):
            raise MethodError(f"{owner.name} gives an update the weight {weight}")
        return weight

    def initial(self, layout: Layout) -> State:
        return {
            f"{layer.name}.{name}": value
            for layer in self.layers
            for name, value in layer.initial(layout).items()
        }

    def send(self, state: State) -> State:
        return {
            name: value
            for layer in self.layers
            for name, value in layer.send(_of(state, layer.name)).items()
        }

    def step(self, w: Tensor, merged: Merged, state: State) -> tuple[Tensor, State]:
        owner = self._owner("step")
        w, new = owner.step(w, merged, _of(state, owner.name))
        return w, {**state, **{f"{owner.name}.{name}": value for name, value in new.items()}}

    def _owner(self, hook: str) -> Method:
        """The one layer that fills in this hook, or the first if none does."""
        default = getattr(Method, hook)
        owners = [layer for layer in self.layers if getattr(type(layer), hook) is not default]
        if len(owners) > 1:
            names = " and ".join(layer.name for layer in owners)
            raise MethodError(f"{names} cannot be combined: each decides {ONE_OWNER[hook]}")
        return owners[0] if owners else self.layers[0]


def parse(text: str, known: Mapping[str, type[Method]]) -> Stack:
    """Read `name(key=value, …)+name…`; every mistake says what is known."""
    if not text.strip():
        raise MethodError(f"no method is named; known methods: {', '.join(sorted(known))}")
    parts = re.split(r"\+(?![^(]*\))", text)  # a + inside parentheses belongs to a number: 1e+3
    return Stack(tuple(_layer(part.strip(), known) for part in parts))


def _layer(text: str, known: Mapping[str, type[Method]]) -> Method:
    match = re.fullmatch(r"([\w.-]+)\s*(?:\((.*)\))?", text)
    if match is None:
        raise MethodError(f"method '{text}' is not of the form name or name(key=value, ...)")
    name, arguments = match[1], match[2] or ""
    if name not in known:
        raise MethodError(f"unknown method '{name}'{_hint(name, known)}")
    fields = {field.name: field for field in dataclasses.fields(known[name])}
    values: dict[str, bool | int | float | str] = {}
    for part in filter(None, (part.strip() for part in arguments.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in fields:
            raise MethodError(f"method '{name}' has no option '{key}'{_hint(key, fields)}")
        values[key] = _value(f"{name}({key}=…)", value, fields[key].default)
    return known[name](**values)


def _value(where: str, text: str, default: object) -> bool | int | float | str:
    """Read an option's value as the type of its default."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            number = float(text)
            if math.isfinite(number):
                return number
            raise ValueError
    except (KeyError, ValueError):
        kind = type(default).__name__
        raise MethodError(f"{where} wants a finite {kind}, got '{text}'") from None
    return text


def _hint(word: str, allowed: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, allowed, n=1)
    guess = f"; did you mean '{close[0]}'?" if close else ""
    return f"{guess} (known: {', '.join(sorted(allowed)) or 'none'})"


def _text(layer: Method) -> str:
    values = dataclasses.asdict(layer)
    options = ", ".join(f"{name}={_literal(value)}" for name, value in values.items())
    return f"{layer.name}({options})" if options else layer.name


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of(state: State, layer: str) -> State:
    prefix = f"{layer}."
    return {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}
