"""Every op on a real GPU against the same op on the CPU in float64; skipped where there is none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fededge.ops import _backend
from tests.ops.device_inputs import (
    TOLERANCES,
    assert_close,
    assert_same_bits,
    moved,
    normal,
    rows,
    spans,
)

pytestmark = pytest.mark.skipif(_backend.CUDA.name != "cuda", reason=_backend.CUDA.reason)

SIZES = [0, 1, 255, 256, 257, 3_000_001]
SHAPES = [(0, 10), (1, 1), (7, 2), (300_000, 3), (64, 10), (5, 1024), (5, 1025), (3, 100_000)]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("op", spans(1))
def test_flat_vectors_give_the_bits_of_the_cpu(op: str, n: int) -> None:
    """Nothing is fused on either side."""
    here = spans(n)[op]
    there = moved(here, lambda t: t.cuda())
    getattr(torch.ops.fededge, op)(*here)
    getattr(torch.ops.fededge, op)(*there)
    assert_same_bits(here, there)


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize(("n", "c"), SHAPES)
@pytest.mark.parametrize("op", rows(1, 2, torch.float32))
def test_rows_agree_with_float64(op: str, n: int, c: int, kind: torch.dtype) -> None:
    arguments = rows(n, c, kind)[op]
    exact = moved(arguments, lambda t: t.double() if t.is_floating_point() else t)
    call = getattr(torch.ops.fededge, op)
    found, expected = call(*moved(arguments, Tensor.cuda)), call(*exact)
    assert all(a.is_cuda for a in found)
    assert_close(found, expected, kind)


@pytest.mark.parametrize("c", [2, 10, 1500])
def test_probability_sums_agree_and_are_the_same_every_time(c: int) -> None:
    z, y = normal(500, c), [torch.arange(500) * 7 % c, torch.arange(500) * 3 % c]
    here = [torch.ones(c, c).double(), torch.ones(c).double()]
    torch.ops.fededge.probability_sums_(*here, z.double(), y, [0.3, 0.7])
    runs = []
    for _ in range(3):
        there = [torch.ones(c, c).double().cuda(), torch.ones(c).double().cuda()]
        torch.ops.fededge.probability_sums_(*there, z.cuda(), [a.cuda() for a in y], [0.3, 0.7])
        runs.append(there)
    for i in range(2):
        torch.testing.assert_close(runs[0][i].cpu(), here[i], rtol=1e-5, atol=1e-5)
        assert all(torch.equal(runs[0][i], run[i]) for run in runs)


def test_another_stream_is_honoured() -> None:
    target, source = torch.zeros(1 << 24, device="cuda"), torch.ones(1 << 24, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            torch.ops.fededge.ema_(target, source, 0.5)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(target, torch.full_like(target, 1 - 0.5**20))


@pytest.mark.parametrize("label", [-1, 10, 2**40])
def test_a_label_outside_is_nan_at_once_and_an_error_at_the_next_call(label: int) -> None:
    z, y = torch.randn(4, 10, device="cuda"), torch.tensor([0, 1, label, 3], device="cuda")
    loss, dz = torch.ops.fededge.label_loss_forward(z, [y], [1.0])
    assert math.isnan(loss.item())
    assert dz.isnan().all(1).tolist() == [False, False, True, False]
    with pytest.raises(IndexError, match=f"label {label}, which was not one of its classes"):
        torch.ops.fededge.label_loss_forward(z, [y.clamp(0, 9)], [1.0])
    loss, _ = torch.ops.fededge.label_loss_forward(z, [y.clamp(0, 9)], [1.0])
    assert math.isfinite(loss.item())


def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="source is on cpu, expected cuda:0"):
        torch.ops.fededge.ema_(torch.zeros(3, device="cuda"), torch.zeros(3), 0.5)
