"""The host cannot touch the device's memory, and the device cannot mix with another."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fededge import ops
from tests import accelerator

LIBC = ctypes.CDLL(None)


def in_child(touch: Callable[[], object]) -> int:
    """The wait status of a forked copy of this process, which inherits the device's memory.

    Python's own fork would warn about torch's threads; this child does next to nothing.
    """
    child = LIBC.fork()
    if child == 0:
        faulthandler.disable()
        try:
            touch()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("how", ["read", "write"])
def test_the_host_that_touches_device_memory_dies(device: torch.device, how: str) -> None:
    x = torch.ones(8, device=device)
    for _ in range(2):
        if how == "read":
            status = in_child(lambda: ctypes.string_at(x.data_ptr(), 1))
        else:
            status = in_child(lambda: ctypes.memset(x.data_ptr(), 0, 1))
        assert os.WTERMSIG(status) == signal.SIGSEGV
        x.add_(1.0)
        ops.ema_(x, x.clone(), 0.5)  # opens the memory for its device code, and closes it again
    assert x.tolist() == [3.0] * 8


def test_memory_that_an_op_allocates_is_closed_too(device: torch.device) -> None:
    z = torch.randn(4, 10, device=device, requires_grad=True)
    ops.label_loss(z, [torch.arange(4, device=device)]).backward()
    gradient = z.grad
    assert gradient is not None
    status = in_child(lambda: ctypes.string_at(gradient.data_ptr(), 1))
    assert os.WTERMSIG(status) == signal.SIGSEGV


def test_a_forked_process_may_not_use_the_device(device: torch.device) -> None:
    torch.zeros(1, device=device)

    def use() -> None:
        with pytest.raises(RuntimeError, match="Cannot re-initialize the emulated device"):
            torch.zeros(1, device=device)
        os._exit(7)

    assert os.WEXITSTATUS(in_child(use)) == 7


def test_a_child_process_knows_the_device_because_torch_loads_it() -> None:
    code = (
        "import torch; print(torch.emulated.mem_get_info()[1]); print(torch.ones(2).sum().item())"
    )
    code += "; x = torch.ones(2, device='emulated'); print(x.sum().item()); x.add_(1)"
    orders = {"EMULATED_MEMORY": "1048576", "EMULATED_FAIL_LAUNCH": "3"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**accelerator.environment(), **orders},
        capture_output=True,
        text=True,
    )
    assert result.stdout == "1048576\n2.0\n2.0\n", result.stderr
    assert "RuntimeError: emulated error: launch failed" in result.stderr


def test_other_devices_are_refused(device: torch.device) -> None:
    here, there = torch.ones(3), torch.ones(3, device=device)
    calls: list[Callable[[], object]] = [
        lambda: there + here,
        lambda: torch.cat([there, here]),
        lambda: there.mul_(here),
        lambda: torch.nn.functional.linear(there[None], here[None]),
        lambda: torch.nn.functional.conv2d(there.view(1, 1, 1, 3), here.view(1, 1, 1, 3)),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call()
    with pytest.raises(TypeError, match="can't convert emulated"):
        there.numpy()


def test_one_number_may_come_from_the_cpu(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    assert (x * torch.tensor(2.0) + 1).tolist() == [3.0, 3.0, 3.0]


def test_new_memory_holds_no_zeros(device: torch.device) -> None:
    """Nothing that forgets to write its output passes by luck."""
    assert torch.empty(100, device=device).isnan().all()


def test_freed_memory_is_reused(device: torch.device) -> None:
    module = torch.get_device_module("emulated")
    before = module.memory_allocated()
    kept = [torch.empty(1000, device=device) for _ in range(5)]
    assert module.memory_allocated() == before + 5 * 4096
    addresses = {t.data_ptr() for t in kept}
    kept.clear()
    assert module.memory_allocated() == before
    assert torch.empty(1000, device=device).data_ptr() in addresses


def test_storages_grow_and_are_copied(device: torch.device) -> None:
    x = torch.arange(4.0, device=device)
    assert x.resize_(8)[:4].tolist() == [0.0, 1.0, 2.0, 3.0]
    clone = x.untyped_storage().clone()
    again = torch.empty(0, device=device).set_(clone)
    assert again[:4].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert again.data_ptr() != x.data_ptr()


def test_a_state_can_be_saved_and_loaded(device: torch.device, tmp_path: Path) -> None:
    state = {"w": torch.arange(4.0, device=device)}
    torch.save(state, tmp_path / "state.pt")
    again = torch.load(tmp_path / "state.pt", weights_only=True)["w"]
    assert again.device.type == "emulated"
    assert again.tolist() == [0.0, 1.0, 2.0, 3.0]
    moved = torch.load(tmp_path / "state.pt", weights_only=True, map_location="cpu")["w"]
    assert moved.device.type == "cpu"
