"""Threads and bits: what a turn promises for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fededge.flat import FlatModel
from fededge.hardware import Hardware
from fededge.methods import Hyper, Private, method
from fededge.models import build
from fededge.training import Examples, Task, Trainer, prepare_threads

SHAPE = (3, 16, 16)


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    yield
    prepare_threads()


def upload(threads: int) -> torch.Tensor:
    hardware = Hardware(threads=threads)
    prepare_threads(hardware)
    assert torch.get_num_threads() == threads
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (24, *SHAPE), generator=draw, dtype=torch.uint8)
    y = torch.randint(0, 4, (24,), generator=draw)
    net = FlatModel(build("resnet8", 4, SHAPE, 0))
    start = net.vector.clone()
    data = Examples(x, y, x[:0], y[:0], 4)
    trainer = Trainer("box", net, Pixels(), data, method("fedavg"), hardware)
    task = Task(0, 0, Hyper(batch_size=8), start, {})
    return trainer.turn(task, Private()).upload


class Pixels(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / 127.5 - 1


def test_the_same_number_of_threads_gives_the_same_bits() -> None:
    assert torch.equal(upload(2), upload(2))


def test_another_number_of_threads_differs_in_the_last_bits_only() -> None:
    """torch adds up the parts of a convolution in another order."""
    one, two = upload(1), upload(2)
    torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
