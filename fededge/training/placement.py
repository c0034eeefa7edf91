"""The placement of a turn's examples, and the path of its batches to the training's device."""

from __future__ import annotations

from collections.abc import Iterator

from fededge._internal.lazy_torch import Tensor, torch
from fededge.errors import MethodError
from fededge.method.base import Examples
from fededge.method.turn import Turn

__all__ = ["RESIDENT_SHARE", "Fetched", "epoch_of", "free_bytes", "placed"]

RESIDENT_SHARE = 0.5
"""The share of the device's free memory that examples may take; more of them stay on the host."""

Fetched = tuple[Tensor, Tensor | None]
"""The positions of a batch's examples on the training's device, and their inputs if fetched."""


def placed(data: Examples, device: torch.device) -> Examples:
    """Return the examples on the training's device; inputs that take too much stay on the host.

    Raises:
        MethodError: a label is out of range; read once here, a device would report it later.
    """
    _check_labels(data)
    if device.type == "cpu":
        return data
    free = free_bytes(device)
    needed = data.x.nbytes + data.held_x.nbytes
    return data.to(device, inputs=free is None or needed <= RESIDENT_SHARE * free[0])


def _check_labels(data: Examples) -> None:
    for y in (data.y, data.held_y):
        outside = ((y < 0) | (y >= data.classes)).nonzero()
        if len(outside):
            position = int(outside[0])
            label = f"label {int(y[position])} of example {position}"
            raise MethodError(f"{label} is not one of {data.classes} classes")


def free_bytes(device: torch.device) -> tuple[int, int] | None:
    """Return the free and the total memory of an accelerator; None if torch cannot tell."""
    module = torch.get_device_module(device.type)
    if not hasattr(module, "mem_get_info"):
        return None
    free, total = module.mem_get_info(device)
    return int(free), int(total)


def epoch_of(turn: Turn, order: Tensor, sizes: list[int]) -> Iterator[Fetched]:
    """Yield the batches of an epoch; inputs on the host are fetched one batch ahead.

    Args:
        turn: its examples and its device.
        order: the examples' positions in the order of this epoch, on the host.
        sizes: of the batches.
    """
    x, device = turn.data.x, turn.net.vector.device
    indices = turn.moved(order).split(sizes)
    if x.device == device:
        yield from ((index, None) for index in indices)
        return
    fetched = (turn.moved(x.index_select(0, part)) for part in order.split(sizes))
    ahead = next(fetched)
    for index in indices:
        inputs, ahead = ahead, next(fetched, ahead)
        yield index, inputs
