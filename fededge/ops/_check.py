"""Checks of the ops' arguments, with messages that print what was given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fededge.errors import LayoutError, MethodError

__all__ = ["check_labels", "check_numbers", "check_vectors"]


def check_vectors(
    op: str, *dtypes: torch.dtype, like: Tensor | None = None, **vectors: Tensor | None
) -> None:
    """Demand dense 1-D vectors of one of these types, all as long as `like`, on its device.

    Args:
        op: who asks, for the message.
        dtypes: what the vectors may be.
        like: the op's first vector; left out when it is itself what is checked.
        vectors: by their argument's name; None is one that the caller left out.
    """
    for name, vector in vectors.items():
        if vector is None:
            continue
        problem = _problem(vector, dtypes, like)
        if problem:
            raise LayoutError(f"{op}: {name} {problem}")


def _problem(vector: Tensor, dtypes: tuple[torch.dtype, ...], like: Tensor | None) -> str | None:
    if vector.dtype not in dtypes:
        return f"is {vector.dtype}, it must be {' or '.join(map(str, dtypes))}"
    if vector.dim() != 1:
        return f"has shape {tuple(vector.shape)}, it must be a flat vector"
    if not vector.is_contiguous():
        return f"is not contiguous (stride {vector.stride(0)}): call .contiguous() first"
    if vector.requires_grad:
        return "requires a gradient, which this op cannot give: call .detach() first"
    if like is None:
        return None
    if vector.shape != like.shape:
        return f"has {vector.numel()} elements, expected {like.numel()}"
    if vector.device != like.device:
        return f"is on {vector.device}, expected {like.device}"
    return None


def check_numbers(op: str, **numbers: float) -> None:
    """Demand finite numbers."""
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise MethodError(f"{op}: {name} is {number}, it must be a finite number")


def check_labels(op: str, z: Tensor, labels: Sequence[Tensor]) -> None:
    """Demand labels [rows] of logits [rows, classes], as the compiled ops do by themselves."""
    if z.dim() != 2:
        shape = list(z.shape)
        raise ValueError(f"{op}: the logits have shape {shape}, they must be [rows, classes]")
    classes = z.shape[1]
    for y in labels:
        if y.shape != z.shape[:1]:
            rows = f"but there are {len(z)} rows of logits"
            raise ValueError(f"{op}: the labels have shape {list(y.shape)} {rows}")
        if torch.compiler.is_compiling():  # traced, it has no values
            continue
        outside = (y < 0) | (y >= classes)
        if not y.is_cpu:  # reading where it is would wait for the device
            torch._assert_async(~outside.any(), f"{op}: a label is not one of {classes} classes")
            continue
        outside = outside.nonzero()
        if len(outside):
            row = int(outside[0])
            label = f"label {int(y[row])} of row {row}"
            raise IndexError(f"{op}: {label} is not one of {classes} classes")
