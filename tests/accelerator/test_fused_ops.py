"""FedEdge's fused ops on the device: their device code, in warps and blocks, against float64."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import Tensor

from fededge import ops
from fededge.ops import _backend, reference
from tests.accelerator import Counts, counting
from tests.ops.device_inputs import (
    TOLERANCES,
    assert_close,
    assert_same_bits,
    moved,
    normal,
    rows,
    spans,
)

pytestmark = pytest.mark.skipif(
    _backend.CHOICE.build is None or "FEDEDGE_OPS" in os.environ, reason=_backend.CHOICE.reason
)

SIZES = [0, 1, 255, 257, 70_001]
# Narrow rows, wide ones, and those whose kept numbers lie in global memory.
SHAPES = [(0, 10), (1, 1), (7, 2), (64, 10), (3, 1024), (3, 1025), (2, 13_000)]


def there(t: Tensor) -> Tensor:
    return t.to("emulated")


def test_the_device_is_served_by_its_own_kernels(device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    assert _backend.kernels(x) is not reference
    assert _backend.kernels(torch.zeros(3, device="meta")) is reference
    with counting() as counts:
        ops.ema_(x, x.clone(), 0.5)
    assert counts == Counts(allocations=1, launches=2)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("op", spans(1))
def test_flat_vectors_give_the_bits_of_the_cpu(op: str, n: int) -> None:
    here = spans(n)[op]
    device = moved(here, there)
    getattr(torch.ops.fededge, op)(*here)
    with counting() as counts:
        getattr(torch.ops.fededge, op)(*device)
    assert counts == Counts(launches=1 if n else 0)
    assert_same_bits(here, device)


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize(("n", "c"), SHAPES)
@pytest.mark.parametrize("op", rows(1, 2, torch.float32))
def test_rows_agree_with_float64(op: str, n: int, c: int, kind: torch.dtype) -> None:
    arguments = rows(n, c, kind)[op]
    exact = moved(arguments, lambda t: t.double() if t.is_floating_point() else t)
    call = getattr(torch.ops.fededge, op)
    expected = call(*exact)
    device = moved(arguments, there)
    with counting() as counts:
        found = call(*device)
    assert counts.synchronisations == 0
    assert all(a.device.type == "emulated" for a in found)
    assert_close(found, expected, kind)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_gradients_agree_with_the_reference(device: torch.device, kind: torch.dtype) -> None:
    z, y = normal(12, 10).to(kind), torch.arange(12) * 7 % 10
    shift, teacher = normal(10).to(kind), normal(12, 10).flip(1).to(kind)
    gradients = []
    for module, place in ((reference, "cpu"), (ops, "emulated")):
        leaf = z.to(place, copy=True).requires_grad_()
        labels, moving = y.to(place), shift.to(place)
        if module is reference:
            loss = reference.label_loss(
                leaf, [labels], [1.0], 1.0, 0.5, 0.0, None, moving, None, None, None, None
            ) + reference.distillation(leaf, teacher, 2.0, labels)
        else:
            loss = ops.label_loss(leaf, [labels], flat=0.5, shift=moving)
            loss = loss + ops.distillation(leaf, teacher.to(place), 2.0, labels)
        ops.backward(loss)
        assert leaf.grad is not None
        gradients += [leaf.grad.cpu()]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("c", [2, 10, 1100])
def test_probability_sums(device: torch.device, c: int) -> None:
    z, y = normal(20, c), [torch.arange(20) * 7 % c, torch.arange(20) * 3 % c]
    here = [torch.ones(c, c).double(), torch.ones(c).double()]
    reference.probability_sums_(here[0], here[1], z.double(), y, [0.3, 0.7])
    found = [t.new_ones(t.shape).to(device) for t in here]
    ops.probability_sums_(found[0], found[1], z.to(device), [a.to(device) for a in y], [0.3, 0.7])
    for a, b in zip(found, here, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("label", [-1, 10, 2**40])
def test_a_label_outside_is_nan_at_once_and_an_error_at_the_next_call(
    device: torch.device, label: int
) -> None:
    z, y = torch.randn(4, 10, device=device), torch.tensor([0, 1, label, 3], device=device)
    loss, dz = torch.ops.fededge.label_loss_forward(z, [y], [1.0])
    assert math.isnan(loss.item())
    assert dz.isnan().all(1).tolist() == [False, False, True, False]
    with pytest.raises(IndexError, match=f"label {label}, which was not one of its classes"):
        ops.label_loss(z, [y.clamp(0, 9)])
    assert ops.label_loss(z, [y.clamp(0, 9)]).isfinite()


def test_tensors_on_two_devices_are_refused(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="source is on cpu, expected emulated:0"):
        torch.ops.fededge.ema_(torch.zeros(3, device=device), torch.zeros(3), 0.5)
    with pytest.raises(ValueError, match="the labels is on cpu, but the logits are on emulated:0"):
        ops.label_loss(torch.zeros(3, 2, device=device), [torch.zeros(3).long()])
