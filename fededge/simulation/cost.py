"""The machine-independent cost of a device's turn: arithmetic, and numbers on the wire."""

from __future__ import annotations

from dataclasses import replace

from torch.utils.flop_counter import FlopCounterMode

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
        with FlopCounterMode(display=False) as counter:
            private = executor.turn(task, device, private).private
    return {
        "macs": counter.get_total_flops() / 2 / (len(data.y) * setup.hyper.epochs),
        "numbers_up": float(size),
        "numbers_down": float(size * (1 + len(sent))),
    }
