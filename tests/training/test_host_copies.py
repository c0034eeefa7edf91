"""Results cross from the device once, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fededge.hardware import Hardware
from fededge.methods import Private
from fededge.training import host_copies
from fededge.training.host_copies import CROSSING, HostCopies
from tests import accelerator
from tests.methods.test_accelerator import TRAINING, task, trainer

COPIES = {torch.ops.aten.copy_.default: 1, torch.ops.aten._to_copy.default: 0}
"""Ops that copy, and which of their arguments is copied."""


class Crossings(TorchDispatchMode):
    """The bytes of each copy from the device to the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.sizes: list[int] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in COPIES:
            source: Tensor = args[COPIES[func]]
            if result.is_cpu and not source.is_cpu:
                self.sizes.append(source.nbytes)
        return result


@pytest.fixture
def emulated() -> Hardware:
    built = accelerator.load()
    if isinstance(built, str):
        pytest.skip(built)
    return Hardware(device="emulated")


def crossed(source: Tensor) -> tuple[Tensor, list[int]]:
    """The copy, and the sizes of its crossings; the device has counted no others."""
    with accelerator.counting() as counts, Crossings() as seen:
        copy = HostCopies().tensor(source)
    assert (counts.to_host, counts.to_host_bytes) == (len(seen.sizes), sum(seen.sizes))
    return copy, seen.sizes


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
def test_a_vector_crosses_in_blocks_of_four_mebibytes(dtype: torch.dtype) -> None:
    numbers = torch.arange(2 * CROSSING // dtype.itemsize + 7).to(dtype)
    copy, sizes = crossed(numbers.to("emulated"))
    assert torch.equal(copy, numbers)
    assert sizes == [4 << 20, 4 << 20, 7 * dtype.itemsize]


@pytest.mark.usefixtures("emulated")
def test_odd_shapes_cross_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "CROSSING", 64)
    matrix = torch.arange(42.0).view(6, 7)
    for numbers in (torch.tensor(3.0), torch.empty(0, 4), matrix, torch.tensor([1, 2])):
        copy, sizes = crossed(numbers.to("emulated"))
        assert torch.equal(copy, numbers)
        assert sum(sizes) == numbers.nbytes
    copy, sizes = crossed(matrix.to("emulated").t())
    assert torch.equal(copy, matrix.t())
    assert max(sizes) == 64


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedphp", "fedacd"])
def test_each_result_of_a_turn_crosses_once(
    name: str, emulated: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upload, private state and personal model; vectors that are the same one cross once."""
    one = trainer(name, TRAINING.batch_size, emulated)
    monkeypatch.setattr(host_copies, "CROSSING", 1024)
    asked = task(one)
    with Crossings() as seen:
        answer = one.turn(asked, Private())
    results = [answer.upload, answer.personal, *answer.private.values()]
    vectors = {r.data_ptr(): r.nbytes for r in results if isinstance(r, Tensor) and r.nbytes}
    assert max(seen.sizes) <= 1024
    blocks = [size for size in seen.sizes if size == 1024]
    assert len(blocks) == sum(size // 1024 for size in vectors.values())
