"""Copies, synchronisations, allocations and launches are counted as a GPU would have them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests import accelerator
from tests.accelerator import Counts, counting


def counted(block: Callable[[], object]) -> Counts:
    with counting() as counts:
        block()
    return counts


def test_ops_launch_and_allocate_and_wait_for_nothing(device: torch.device) -> None:
    x = torch.ones(8, 8, device=device)
    assert counted(lambda: x @ x) == Counts(allocations=1, launches=1)
    assert counted(lambda: x.add_(2.0).mul_(x)) == Counts(launches=2)
    assert counted(lambda: x.clone()) == Counts(allocations=1, launches=1)
    assert counted(lambda: x[2:].t().reshape(6, 8)[0].view(2, 4)).synchronisations == 0
    assert counted(lambda: x[2:].t()[0].unsqueeze(0)) == Counts()


def test_copies_to_the_device(device: torch.device) -> None:
    x = torch.ones(10)
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert not x.is_pinned()
    one = {"allocations": 1, "to_device": 1, "to_device_bytes": 40}
    assert counted(lambda: x.to(device)) == Counts(**one, synchronisations=1)
    assert counted(lambda: x.to(device, non_blocking=True)) == Counts(**one, synchronisations=1)
    assert counted(lambda: pinned.to(device)) == Counts(**one, synchronisations=1)
    assert counted(lambda: pinned.to(device, non_blocking=True)) == Counts(**one)
    assert counted(lambda: pinned[2:4].to(device, non_blocking=True)).to_device_bytes == 8


def test_copies_to_the_host(device: torch.device) -> None:
    x, pinned = torch.ones(10, device=device), torch.empty(10).pin_memory()
    one = {"to_host": 1, "to_host_bytes": 40}
    assert counted(x.cpu) == Counts(**one, synchronisations=1)
    assert counted(lambda: pinned.copy_(x)) == Counts(**one, synchronisations=1)
    assert counted(lambda: pinned.copy_(x, non_blocking=True)) == Counts(**one)
    assert counted(lambda: torch.empty(10).copy_(x, non_blocking=True)).synchronisations == 1


def test_a_copy_that_does_not_block_has_not_happened_before_a_synchronisation(
    device: torch.device,
) -> None:
    x, pinned = torch.ones(10, device=device), torch.empty(10).pin_memory()
    pinned.copy_(x, non_blocking=True)
    x.zero_()
    assert pinned.isnan().all()
    torch.accelerator.synchronize()
    assert pinned.sum() == 10


def test_pinned_memory_may_not_change_while_a_copy_reads_it(device: torch.device) -> None:
    pinned = torch.ones(10).pin_memory()
    pinned.to(device, non_blocking=True)
    torch.accelerator.synchronize()
    pinned.to(device, non_blocking=True)
    pinned.zero_()
    with pytest.raises(RuntimeError, match="changed pinned memory before a copy had read it"):
        torch.accelerator.synchronize()
    torch.accelerator.synchronize()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).all()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.index_put_((x > 0,), torch.zeros((), device=x.device)),
        lambda x: x.unique(),
        lambda x: x.long().bincount(),
        lambda x: torch.equal(x, x + 1),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.tolist(),
        lambda x: torch.get_device_module("emulated").synchronize(),
        lambda x: torch.accelerator.synchronize(),
    ],
)
def test_whatever_the_host_learns_is_a_synchronisation(
    device: torch.device, read: Callable[[Tensor], object]
) -> None:
    x = torch.ones(4, device=device)
    assert counted(lambda: read(x)).synchronisations >= 1


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x[torch.arange(2, device=x.device)],
        lambda x: x.masked_fill(x > 0, 0.0),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.sort(),
        lambda x: torch.nn.functional.one_hot(x.long(), 10),
        lambda x: torch.nn.functional.cross_entropy(x[None], x[:1].long()),
        lambda x: torch.randperm(4, device=x.device),
        lambda x: x.new_zeros(3).scatter_(0, x.long()[:1], 2.0),
    ],
)
def test_work_on_the_device_needs_no_synchronisation(
    device: torch.device, run: Callable[[Tensor], object]
) -> None:
    x = torch.ones(4, device=device)
    counts = counted(lambda: run(x))
    assert (counts.synchronisations, counts.to_device, counts.to_host) == (0, 0, 0)
    assert counts.launches > 0


def test_streams_and_events(device: torch.device) -> None:
    """Prefetching code runs: a copy on a stream of its own, an event that the next op waits for."""
    stream, event = torch.Stream(device), torch.Event(device)
    pinned = torch.ones(10).pin_memory()
    with counting() as counts:
        with stream:
            x = pinned.to(device, non_blocking=True)
            event.record(stream)
        torch.accelerator.current_stream().wait_event(event)
        x.record_stream(torch.accelerator.current_stream())
        x.mul_(2.0)
    assert counts == Counts(allocations=1, launches=1, to_device=1, to_device_bytes=40)
    assert counted(event.synchronize).synchronisations == 1
    assert counted(stream.synchronize).synchronisations == 1


def test_differences_are_of_the_block_alone(device: torch.device) -> None:
    before = accelerator.counts()
    torch.zeros(3, device=device)
    assert counted(lambda: None) == Counts()
    assert (accelerator.counts() - before).allocations == 1
