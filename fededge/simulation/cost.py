"""The machine-independent cost of a device's turn: arithmetic, and numbers on the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fededge.flat import as_tensors
from fededge.methods import Private
from fededge.simulation.executors import SerialExecutor, Setup
from fededge.training import Task

__all__ = ["turn_cost"]

TURNS = 3


def turn_cost(setup: Setup) -> dict[str, float]:
    """Return the cost of a device's turn.

    `macs` are multiply-accumulates per example and epoch: forward, backward and the method's own
    work, without the test on held-out data. They are measured in the last of the smallest device's
    turns: the first has no earlier model to learn from (LfD, MAP), and in the second FedALA's
    weights take longer to converge.
    """
    device, data = min(
        ((name, data) for name, data in setup.devices.items() if len(data.y)),
        key=lambda item: len(item[1].y),
    )
    untested = replace(data, held_x=data.held_x[:0], held_y=data.held_y[:0])
    executor = SerialExecutor(replace(setup, devices={device: untested}))
    size = executor.net.layout.size
    sent = as_tensors(executor.method.send(executor.method.initial(executor.net.layout)))
    task = Task(setup.seed, 0, setup.hyper, executor.net.vector.clone(), sent)
    private = Private()
    for _ in range(TURNS):
        with OperationCounter() as counter:
            private = executor.turn(task, device, private).private
    return {
        "macs": counter.flops / 2 / (len(data.y) * setup.hyper.epochs),
        "numbers_up": float(size),
        "numbers_down": float(size * (1 + len(sent))),
    }


class OperationCounter(TorchDispatchMode):
    """Counts floating-point operations by torch's formulas.

    Torch's own `FlopCounterMode` also counts by module, and loads torch.compile for it: 4 s.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks this, and loads torch.compile if it is True; nothing is compiled here."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
        if formula is None:  # an op that is made of others: these count
            with self:
                parts = func.decompose(*args, **named)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **named)
        self.flops += 0 if formula is None else formula(*args, **named, out_val=out)
        return out
