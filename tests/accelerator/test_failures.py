"""The device runs out of memory, or a launch fails, exactly where a test says."""

from __future__ import annotations

import pytest
import torch

from fededge import ops
from tests import accelerator


def test_a_limit_is_an_out_of_memory_error(device: torch.device) -> None:
    module = torch.get_device_module("emulated")
    used = module.memory_allocated()
    with accelerator.limited_memory(used + 8192):
        assert module.mem_get_info() == (8192, used + 8192)
        kept = torch.zeros(1024, device=device)
        with pytest.raises(
            torch.OutOfMemoryError, match=r"Tried to allocate 0.0078125 MiB.* of which 0.0039"
        ):
            kept.new_zeros(2048)
        torch.zeros(1024, device=device)
    torch.zeros(1 << 20, device=device)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_nth_allocation_fails_once(device: torch.device, n: int) -> None:
    done = []
    with accelerator.fail_allocation(n):
        for i in range(5):
            try:
                torch.empty(4, device=device)
            except torch.OutOfMemoryError:
                continue
            done.append(i)
    assert done == [i for i in range(5) if i != n - 1]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_nth_launch_fails_once(device: torch.device, n: int) -> None:
    x = torch.zeros(4, device=device)
    with accelerator.fail_launch(n):
        for _ in range(n - 1):
            x.add_(1)
        with pytest.raises(RuntimeError, match="emulated error: launch failed"):
            x.add_(1)
        x.add_(1)
    assert x.tolist() == [float(n)] * 4


def test_an_order_ends_with_its_block(device: torch.device) -> None:
    with accelerator.fail_launch(5), accelerator.fail_allocation(5):
        pass
    for _ in range(10):
        torch.zeros(3, device=device)


@pytest.mark.parametrize("fail", [accelerator.fail_allocation, accelerator.fail_launch])
def test_fused_ops_fail_too(device: torch.device, fail: type) -> None:
    z = torch.randn(4, 10, device=device, requires_grad=True)
    y = torch.arange(4, device=device)
    used = torch.get_device_module("emulated").memory_allocated()
    for n in range(1, 4):
        with fail(n), pytest.raises(RuntimeError, match="emulated"):
            ops.label_loss(z, [y])
    assert torch.get_device_module("emulated").memory_allocated() == used, "a leak"
    assert ops.label_loss(z, [y]).isfinite()


def test_a_failed_backward_leaves_the_device_usable(device: torch.device) -> None:
    x = torch.randn(3, 3, device=device, requires_grad=True)
    loss = (x @ x).tanh().sum()
    with accelerator.fail_launch(2), pytest.raises(RuntimeError, match="launch failed"):
        loss.backward()
    (x @ x).tanh().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
