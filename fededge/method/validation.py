"""Validation of what a method's hooks return, for a method may be a plugin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fededge._internal.lazy_torch import Tensor
from fededge.errors import MethodError
from fededge.flat import Layout, Vector, as_numpy, blocks, finite
from fededge.method.base import Hyper, Merged, Method, Phase, Range, State
from fededge.method.plugins import hook_errors
from fededge.method.ranges import UNDECLARED

__all__ = [
    "LONGEST_STEP",
    "as_number",
    "call_initial",
    "call_ranges",
    "call_send",
    "call_step",
    "call_sums",
    "call_weight",
    "check_phases",
    "largest_change",
]

WEIGHTS = Range(0, 1e300)
"""Bounded so that the sum over all devices is finite."""

LONGEST_STEP = 1e15
"""The most that a round may move a number of the model.

No honest round comes near it. Momentum repeats a step: after one of 1e38 every later round would
overflow, and refusing those would not help, for the momentum stays.
"""

LARGEST = LONGEST_STEP**2
"""The largest number in the method state: second moments are squares of steps."""


def check_phases(layer: Method, phases: Sequence[Phase]) -> None:
    """Refuse phases that contradict the method's declarations or each other."""
    if tuple(phase.name for phase in phases) != layer.phase_names:
        raise MethodError(f"{layer.name}: `phases` and `phase_names` differ")
    if tuple(phase.name for phase in phases if phase.aside) != layer.aside_names:
        raise MethodError(f"{layer.name}: the phases aside and `aside_names` differ")
    shares = [phase.share for phase in phases if phase.epochs is None]
    if shares and not math.isclose(sum(shares), 1.0):
        raise MethodError(
            f"{layer.name}: the shares of its phases must sum to 1, got {sum(shares)}"
        )
    for phase in phases:
        if phase.start is not None and not phase.aside:
            raise MethodError(f"{layer.name}: phase '{phase.name}' has a start but is not aside")


def as_number(layer: Method, name: str, value: object) -> float:
    """Convert a scalar of the device half to a float."""
    try:
        return float(value)  # type: ignore[arg-type]  # a plugin may return anything
    except (TypeError, ValueError, RuntimeError):
        raise MethodError(
            f"{layer.name}: scalar '{name}' must be a number, got {value!r:.80}"
        ) from None


def call_ranges(layer: Method, hyper: Hyper, examples: int, steps: int) -> dict[str, Range]:
    """Call `ranges`; return the range of each of the layer's scalars, declared or default."""
    with hook_errors(layer, "ranges"):
        declared = dict(layer.ranges(hyper, examples, steps))
    for name, range_ in declared.items():
        if name not in layer.scalars:
            raise MethodError(
                f"{layer.name}: `ranges` names '{name}', which is not in its `scalars`"
            )
        if not isinstance(range_, Range):
            raise MethodError(
                f"{layer.name}: the range of '{name}' must be a Range, got {range_!r:.80}"
            )
    return {name: declared.get(name, UNDECLARED) for name in layer.scalars}


def call_weight(layer: Method, scalars: Mapping[str, float]) -> float:
    with hook_errors(layer, "weight"):
        weight = float(layer.weight(scalars))
    if weight not in WEIGHTS:
        raise MethodError(f"{layer.name}: an update's weight must be {WEIGHTS}, got {weight}")
    return weight


def call_sums(layer: Method, scalars: Mapping[str, float]) -> dict[str, float]:
    with hook_errors(layer, "sums"):
        factors = {name: float(factor) for name, factor in layer.sums(scalars).items()}
    if not all(map(math.isfinite, factors.values())):
        raise MethodError(f"{layer.name}: an update's factors must be finite, got {factors}")
    return factors


def call_initial(layer: Method, layout: Layout) -> State:
    with hook_errors(layer, "initial"):
        state = {name: _vector(layer, name, v) for name, v in layer.initial(layout).items()}
    for name, vector in state.items():
        if not finite(vector):
            raise MethodError(f"{layer.name}: '{name}' has numbers that are not finite")
    return state


def call_send(layer: Method, state: State) -> State:
    with hook_errors(layer, "send"):
        vectors = {name: _vector(layer, name, v) for name, v in layer.send(state).items()}
    if vectors.keys() != set(layer.sends):
        raise MethodError(
            f"{layer.name}: `send` returns {sorted(vectors)}, but `sends` declares {layer.sends}"
        )
    return vectors


def call_step(layer: Method, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
    """Call `step`; return the next model, with the mean's running statistics, and state."""
    with hook_errors(layer, "step"):
        result: object = layer.step(w, merged, state)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise MethodError(
                f"{layer.name}: `step` must return (model, state), got {result!r:.80}"
            )
        model = _vector(layer, "model", result[0], len(w))
        if result[0] is not merged.mean:
            model = model.copy()
            for entry in merged.layout.entries:
                if not entry.trainable:
                    model[entry.span] = merged.mean[entry.span]
        new = {name: _vector(layer, name, value) for name, value in result[1].items()}
        _check_magnitudes(layer, w, model, new)
    return model, new


def _check_magnitudes(layer: Method, w: Vector, model: Vector, state: State) -> None:
    """Refuse finite numbers so large that later rounds would overflow.

    The caller refuses numbers that are not finite.
    """
    moved = largest_change(model, w)
    if moved > LONGEST_STEP and finite(model):
        raise MethodError(
            f"{layer.name}: the step would move a number of the model by {moved:.3g}, "
            f"at most {LONGEST_STEP:g} is allowed: an update is hostile, or an option is too large"
        )
    for name, vector in state.items():
        if _largest(vector) > LARGEST and finite(vector):
            raise MethodError(
                f"{layer.name}: the next '{name}' would hold the number {_largest(vector):.3g}, "
                f"at most {LARGEST:g} is allowed: an update is hostile, or an option is too large"
            )


@np.errstate(over="ignore", invalid="ignore")
def largest_change(model: Vector, w: Vector) -> float:
    """Return the largest absolute change of a number, block by block to save memory."""
    return max((_largest(model[span] - w[span]) for span in blocks(0, len(w))), default=0.0)


def _largest(vector: Vector) -> float:
    """Return the largest absolute value, without allocating a second vector."""
    return max(float(vector.max()), -float(vector.min())) if vector.size else 0.0


def _vector(layer: Method, name: str, value: object, size: int | None = None) -> Vector:
    """Convert a vector of the coordinator half to float32 numpy; a plugin may return tensors."""
    array = as_numpy(value.float()) if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.ndim != 1:
        raise MethodError(f"{layer.name}: '{name}' must be a vector, got {value!r:.80}")
    if size is not None and len(array) != size:
        raise MethodError(f"{layer.name}: '{name}' must have {size} numbers, got {len(array)}")
    return np.ascontiguousarray(array, np.float32)
