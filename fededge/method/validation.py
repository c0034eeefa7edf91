"""What a layer's hooks give, checked where it comes back: a method may be anybody's."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fededge._internal.lazy_torch import Tensor
from fededge.errors import MethodError
from fededge.flat import Layout, Vector, as_numpy, blocks, finite
from fededge.method.base import Hyper, Merged, Method, Range, State
from fededge.method.plugins import calling
from fededge.method.ranges import UNDECLARED

__all__ = [
    "LONGEST_STEP",
    "factors",
    "farthest",
    "first_state",
    "number",
    "ranges_of",
    "sent",
    "stepped",
    "weight",
]

WEIGHTS = Range(0, 1e300)
"""The sum over all devices is finite."""

LONGEST_STEP = 1e15
"""The farthest that a round may move a number of the model.

No honest round comes near. Momentum repeats a step: one of 1e38 would make all rounds after it
overflow, and refusing those would not help, for the momentum is still there.
"""

LARGEST = LONGEST_STEP**2
"""The largest number in a method's memory: second moments are squares of steps."""


def number(layer: Method, name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # a method may be anybody's
    except (TypeError, ValueError, RuntimeError):
        raise MethodError(f"{layer.name} reports '{name}', which is not a number") from None


def ranges_of(layer: Method, hyper: Hyper, examples: int, steps: int) -> dict[str, Range]:
    """The ranges of a layer's own scalars, whether it declares them or not."""
    with calling(layer, "ranges"):
        declared = dict(layer.ranges(hyper, examples, steps))
    for name, given in declared.items():
        if name not in layer.scalars:
            raise MethodError(f"{layer.name} gives '{name}' a range, but it is not in its scalars")
        if not isinstance(given, Range):
            raise MethodError(f"{layer.name} gives '{name}' the range {given!r:.80}, not a Range")
    return {name: declared.get(name, UNDECLARED) for name in layer.scalars}


def weight(layer: Method, scalars: Mapping[str, float]) -> float:
    with calling(layer, "weight"):
        given = float(layer.weight(scalars))
    if given not in WEIGHTS:
        raise MethodError(f"{layer.name} gives an update the weight {given}: it must be {WEIGHTS}")
    return given


def factors(layer: Method, scalars: Mapping[str, float]) -> dict[str, float]:
    with calling(layer, "sums"):
        given = {name: float(factor) for name, factor in layer.sums(scalars).items()}
    if not all(map(math.isfinite, given.values())):
        raise MethodError(f"{layer.name} gives an update factors that are not finite: {given}")
    return given


def first_state(layer: Method, layout: Layout) -> State:
    with calling(layer, "initial"):
        state = {name: _vector(layer, name, v) for name, v in layer.initial(layout).items()}
    for name, given in state.items():
        if not finite(given):
            raise MethodError(f"{layer.name} gives a '{name}' with numbers that are not finite")
    return state


def sent(layer: Method, state: State) -> State:
    with calling(layer, "send"):
        vectors = {name: _vector(layer, name, v) for name, v in layer.send(state).items()}
    if vectors.keys() != set(layer.sends):
        raise MethodError(f"{layer.name} sends {sorted(vectors)}, but declares {layer.sends}")
    return vectors


def stepped(layer: Method, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
    """The next model, with the mean's running statistics, and what the layer remembers then."""
    with calling(layer, "step"):
        given: object = layer.step(w, merged, state)
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)):
            raise MethodError(f"{layer.name}: step must give (model, state), not {given!r:.80}")
        model = _vector(layer, "model", given[0], len(w))
        if given[0] is not merged.mean:
            model = model.copy()
            for entry in merged.layout.entries:
                if not entry.trainable:
                    model[entry.span] = merged.mean[entry.span]
        new = {name: _vector(layer, name, value) for name, value in given[1].items()}
        _check_sizes(layer, w, model, new)
    return model, new


def _check_sizes(layer: Method, w: Vector, model: Vector, state: State) -> None:
    """Refuse finite numbers that leave no room for the next rounds; others are found later."""
    moved = farthest(model, w)
    if moved > LONGEST_STEP and finite(model):
        raise MethodError(
            f"{layer.name}: the step would move a number of the model by {moved:.3g}, "
            f"at most {LONGEST_STEP:g} is allowed: an update is hostile, or an option too large"
        )
    for name, vector in state.items():
        if _largest(vector) > LARGEST and finite(vector):
            raise MethodError(
                f"{layer.name}: the next '{name}' would have the number {_largest(vector):.3g}, "
                f"at most {LARGEST:g} is allowed: an update is hostile, or an option too large"
            )


@np.errstate(over="ignore", invalid="ignore")
def farthest(model: Vector, w: Vector) -> float:
    """The largest change of a number, block by block."""
    return max((_largest(model[span] - w[span]) for span in blocks(0, len(w))), default=0.0)


def _largest(vector: Vector) -> float:
    """The largest absolute value, without a second vector."""
    return max(float(vector.max()), -float(vector.min())) if vector.size else 0.0


def _vector(layer: Method, name: str, value: object, size: int | None = None) -> Vector:
    """What a coordinator half gives, as numpy has it: a user's own method may think in tensors."""
    array = as_numpy(value.float()) if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.ndim != 1:
        raise MethodError(f"{layer.name} gives a '{name}' that is no vector: {value!r:.80}")
    if size is not None and len(array) != size:
        raise MethodError(f"{layer.name} gives a '{name}' of {len(array)} numbers, not {size}")
    return np.ascontiguousarray(array, np.float32)
