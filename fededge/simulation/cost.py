"""What a turn costs a device, whatever the machine: arithmetic, and numbers on the wire."""

from __future__ import annotations

from dataclasses import replace

from torch.utils.flop_counter import FlopCounterMode

from fededge.flat import as_tensors
from fededge.methods import Private
from fededge.simulation.workers import Alone, Setup
from fededge.training import Task

__all__ = ["turn_cost"]

TURNS = 3


def turn_cost(setup: Setup) -> dict[str, float]:
    """The cost of a device's turn.

    `macs` are multiplications with an addition, by example and epoch: forward and backward, with
    everything that the method does beside, but without the test on held-out data. Counted by
    letting the smallest device take turns. The last of them counts: at first there is no earlier
    model to learn from (LfD, MAP), and the second time FedALA's weights take longer to settle.
    """
    device, data = min(
        ((name, data) for name, data in setup.devices.items() if len(data.y)),
        key=lambda item: len(item[1].y),
    )
    untested = replace(data, held_x=data.held_x[:0], held_y=data.held_y[:0])
    crew = Alone(replace(setup, devices={device: untested}))
    size = crew.net.layout.size
    sent = as_tensors(crew.method.send(crew.method.initial(crew.net.layout)))
    task = Task(setup.seed, 0, setup.hyper, crew.net.vector.clone(), sent)
    private = Private()
    for _ in range(TURNS):
        with FlopCounterMode(display=False) as counter:
            private = crew.turn(task, device, private).private
    return {
        "macs": counter.get_total_flops() / 2 / (len(data.y) * setup.hyper.epochs),
        "numbers_up": float(size),
        "numbers_down": float(size * (1 + len(sent))),
    }
