"""The flat-vector kernels as a GPU runs them, played on the CPU: every thread, any grid."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.ops.inputs import vectors
from tests.ops.playing import Played

SIZES = [0, 1, 31, 32, 33, 1000]
THREADS = [1, 32, 64, 96, 2048]
SHAPES = [(n, threads) for n in SIZES for threads in THREADS]
shapes = pytest.mark.parametrize(("n", "threads"), SHAPES)


def same(a: Tensor, b: Tensor, tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance)


@shapes
def test_ema(played: Played, n: int, threads: int) -> None:
    target, source = vectors(n, 2, 2)
    expected = 0.3 * target.double() + 0.7 * source.double()
    played.ema(target, source, 0.3, n, threads)
    same(target, expected)


@shapes
def test_ala_step(played: Played, n: int, threads: int) -> None:
    noise, mixed, g, local, received = vectors(n, 3, 5)
    W, change = noise.sigmoid(), received.double() - local.double()
    expected = (W.double() - 0.5 * g.double() * change).clamp(0, 1)
    played.ala_step(W, mixed, g, local, received, 0.5, n, threads)
    same(W, expected, 1e-5)
    same(mixed, local.double() + change * expected, 1e-5)


@shapes
@pytest.mark.parametrize("masked", [False, True])
def test_sgd_step(played: Played, n: int, threads: int, masked: bool) -> None:
    w, g, buffer, anchor, bias, noise = vectors(n, 4, 6)
    mask = (noise > 0).float() if masked else None
    moves = torch.ones(n, dtype=torch.bool) if mask is None else mask != 0
    step = g.double() + 0.01 * w.double() + 0.2 * (w.double() - anchor.double()) + bias.double()
    momentum = torch.where(moves, 0.9 * buffer.double() + step, buffer.double())
    moved = torch.where(moves, w.double() - 0.1 * momentum, w.double())
    numbers = (0.1, 0.9, 0.01, 0.2)
    played.sgd_step(w, g, buffer, anchor, bias, mask, *numbers, n, threads)
    same(buffer, momentum)
    same(w, moved)
