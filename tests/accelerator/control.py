"""Controls of the accelerator for tests: its counts, a memory limit, and injected failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from tests.accelerator.device import extension

__all__ = ["Counts", "counting", "counts", "fail_allocation", "fail_launch", "limited_memory"]


@dataclass
class Counts:
    """Counts of operations on the device.

    A synchronisation is every place where a GPU would make the host wait: a copy that blocks or
    whose host side is not pinned, a value that is read, an op whose output size depends on values.
    """

    allocations: int = 0
    launches: int = 0
    synchronisations: int = 0
    to_device: int = 0
    to_device_bytes: int = 0
    to_host: int = 0
    to_host_bytes: int = 0

    def __sub__(self, other: Counts) -> Counts:
        names = [field.name for field in fields(Counts)]
        return Counts(*(getattr(self, name) - getattr(other, name) for name in names))


def counts() -> Counts:
    """The counts since the process began."""
    return Counts(**extension().counts())


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts of a block, filled in at its end."""
    before, out = counts(), Counts()
    try:
        yield out
    finally:
        out.__dict__.update((counts() - before).__dict__)


@contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """A device of `size` bytes; what is allocated already counts."""
    before = extension().memory()["limit"]
    extension().limit_memory(size)
    try:
        yield
    finally:
        extension().limit_memory(before)


@contextmanager
def fail_allocation(n: int) -> Iterator[None]:
    """The n-th allocation of the block, counted from 1, raises torch.OutOfMemoryError."""
    extension().fail_allocation(n)
    try:
        yield
    finally:
        extension().fail_allocation(0)


@contextmanager
def fail_launch(n: int) -> Iterator[None]:
    """The n-th launch of the block, counted from 1, raises RuntimeError."""
    extension().fail_launch(n)
    try:
        yield
    finally:
        extension().fail_launch(0)
