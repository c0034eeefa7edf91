"""The simulated contenders of `peers.py`, each in a process of its own.

python benchmarks/peers/peer_simulations.py NAME JOB  (as peers.py starts it; ends with JSON)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from peer_work import PlainTorch, SimulatedJob, SimulatedRounds, mean
from torch import multiprocessing

from fededge.simulation import ProcessExecutor, Simulation


def fededge(job: SimulatedJob) -> SimulatedRounds:
    executor = ProcessExecutor(job.setup, job.workers)
    simulation = Simulation(job.setup, job.chosen.participants, executor)
    seconds, began, model = list[float](), time.perf_counter(), simulation.first
    for done in simulation.rounds(job.chosen.rounds):
        seconds.append(time.perf_counter() - began)
        began, model = time.perf_counter(), done.model
    executor.stop()
    return job.result(seconds, model)


# Raw torch: worker processes, the model in shared memory, a queue of devices.


def raw(job: SimulatedJob) -> SimulatedRounds:
    spawn = multiprocessing.get_context("spawn")
    model = PlainTorch(job).model.share_memory_()
    trained = torch.zeros(len(job.setup.devices), len(model)).share_memory_()
    asked, done = spawn.SimpleQueue(), spawn.SimpleQueue()
    # Each loads the shards itself: malloc then keeps the memory that a step frees.
    unloaded = SimulatedJob(job.experiment, job.workers)
    arguments = (unloaded, model, trained, asked, done)
    workers = [
        spawn.Process(target=_raw_worker, args=arguments, daemon=True) for _ in range(job.workers)
    ]
    for worker in workers:
        worker.start()
    seconds = []
    for number in range(job.chosen.rounds):
        began = time.perf_counter()
        model.copy_(_raw_round(job, number, trained, asked, done))
        seconds.append(time.perf_counter() - began)
    for worker in workers:
        worker.kill()
    return job.result(seconds, model)


def _raw_round(
    job: SimulatedJob, number: int, trained: torch.Tensor, asked: Any, done: Any
) -> torch.Tensor:
    """Start the largest devices first, as FedEdge does."""
    names, chosen = list(job.setup.devices), job.participants(number)
    examples = {name: len(job.setup.devices[name].y) for name in chosen}
    for name in sorted(chosen, key=lambda name: -examples[name]):
        asked.put(names.index(name))
    for _ in chosen:
        done.get()
    return mean([trained[names.index(name)] for name in chosen], list(examples.values()))


def _raw_worker(
    job: SimulatedJob, model: torch.Tensor, trained: torch.Tensor, asked: Any, done: Any
) -> None:
    net, shards = PlainTorch(job), list(job.setup.devices.values())
    while True:
        index = asked.get()
        net.model = model
        net.train(shards[index])
        trained[index].copy_(net.model)
        done.put(index)


def flower(job: SimulatedJob) -> SimulatedRounds:
    from peer_flower import simulate

    return simulate(job)


def pfl(job: SimulatedJob) -> SimulatedRounds:
    from peer_pfl import simulate

    return simulate(job)


CONTENDERS: dict[str, Callable[[SimulatedJob], SimulatedRounds]] = {
    "fededge": fededge,
    "raw": raw,
    "flower": flower,
    "pfl": pfl,
}


if __name__ == "__main__":
    found = CONTENDERS[sys.argv[1]](SimulatedJob(**json.loads(sys.argv[2])))
    print(json.dumps(asdict(found)), flush=True)
