"""torch.autocast on the device: products in 16 bits, losses and sums in float32."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.accelerator.test_training import Network, batch

TYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", TYPES)
def test_products_are_in_16_bits_and_losses_in_32(device: torch.device, dtype: torch.dtype) -> None:
    x, weight = torch.randn(4, 8, device=device), torch.randn(10, 8, device=device)
    images, kernel = torch.randn(2, 3, 8, 8, device=device), torch.randn(4, 3, 3, 3, device=device)
    with torch.autocast("emulated", dtype=dtype):
        z = F.linear(x, weight)
        assert z.dtype == dtype
        assert (x @ weight.t()).dtype == dtype
        assert torch.bmm(x[None], weight.t()[None]).dtype == dtype
        assert F.conv2d(images, kernel).dtype == dtype
        assert F.log_softmax(z, 1).dtype == torch.float32
        assert F.cross_entropy(z, torch.arange(4, device=device)).dtype == torch.float32
        assert z.sum().dtype == torch.float32
        assert z.exp().dtype == torch.float32
        assert F.relu(z).dtype == dtype
        assert torch.addcmul(x, x, x.to(dtype)).dtype == torch.float32
    assert F.linear(x, weight).dtype == torch.float32


@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_are_float32_and_near_those_without(
    device: torch.device, dtype: torch.dtype
) -> None:
    exact = Network().to(device)
    rounded = copy.deepcopy(exact)
    x, y = (t.to(device) for t in batch())
    F.cross_entropy(exact(x), y).backward()
    with torch.autocast("emulated", dtype=dtype):
        loss = F.cross_entropy(rounded(x), y)
    loss.backward()
    for a, b in zip(exact.parameters(), rounded.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert b.grad.dtype == torch.float32
        torch.testing.assert_close(b.grad, a.grad, rtol=0.1, atol=0.02)
        assert not torch.equal(b.grad.cpu(), a.grad.cpu()), "nothing was rounded"


def test_a_gradient_scaler_works(device: torch.device) -> None:
    w = torch.ones(3, device=device, requires_grad=True)
    optimiser = torch.optim.SGD([w], 0.5)
    scaler = torch.amp.GradScaler("emulated", init_scale=1024.0)
    scaler.scale((w * w).sum()).backward()
    scaler.step(optimiser)
    scaler.update()
    assert w.tolist() == [0.0, 0.0, 0.0]
    w.grad = torch.full_like(w, float("inf"))
    scaler.scale(torch.zeros((), device=device))
    scaler.step(optimiser)
    scaler.update()
    assert w.tolist() == [0.0, 0.0, 0.0]
    assert scaler.get_scale() == 512.0
