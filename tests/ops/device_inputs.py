"""Arguments of every op that a device has kernels for, drawn on the CPU and moved there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["TOLERANCES", "assert_close", "assert_same_bits", "moved", "normal", "rows", "spans"]

TOLERANCES = {torch.float64: 1e-10, torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def spans(n: int) -> dict[str, list[Any]]:
    v = [normal(n).roll(i) for i in range(6)]
    mask = (v[5] > 0).float()
    return {
        "ala_step_": [v[0].sigmoid(), v[1], v[2], v[3], v[4], 0.5],
        "ema_": [v[0], v[1], 0.3],
        "sgd_step_": [v[0], v[1], v[2], 0.1, 0.9, 0.01, 0.2, v[3], v[4], mask],
    }


def moved(arguments: list[Any], change: Callable[[Tensor], Tensor]) -> list[Any]:
    out: list[Any] = []
    for a in arguments:
        if isinstance(a, list):
            out.append(moved(a, change))
        else:
            out.append(change(a) if isinstance(a, Tensor) else a)
    return out


def assert_same_bits(here: list[Any], there: list[Any]) -> None:
    """The arguments of an op after it ran on the CPU and on a device."""
    for a, b in zip(here, there, strict=True):
        if isinstance(a, Tensor):
            assert torch.equal(a, b.cpu())


def assert_close(found: Iterable[Tensor], exact: Iterable[Tensor], kind: torch.dtype) -> None:
    """A device's results for logits of this type, and those of float64."""
    tolerance = TOLERANCES[kind]
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(
            a.cpu().double(), b, rtol=tolerance, atol=tolerance, equal_nan=True
        )


def rows(n: int, c: int, kind: torch.dtype) -> dict[str, list[Any]]:
    """Each op's arguments, already rounded to `kind`."""
    z, other, target = (normal(n, c + i)[:, :c].to(kind) for i in range(3))
    y, w = torch.arange(n) * 7 % c, torch.arange(n) * 3 % c
    shift, scale = normal(c).to(kind), normal(c).abs().to(kind)
    target = target.float().softmax(1).to(kind)
    flat = 0.5 if c > 1 else 0.0
    return {
        "label_loss_forward": [
            z,
            [y, w],
            [0.3, 0.7],
            1.0,
            flat,
            0.4,
            scale,
            shift,
            shift.exp(),
            other,
            scale.flip(0),
            target,
        ],
        "distillation_forward": [z, other, 2.0, y if c > 1 else None],
    }
