"""Flower's simulation engine (Ray) as a contender of `peers.py`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peer_work import PlainTorch, SimulatedJob, SimulatedRounds

__all__ = ["client_app", "simulate"]


class Scheduled(FedAvg):  # type: ignore[misc]  # may not be installed
    """Flower's FedAvg with the schedule of the other contenders; notes when a round ends."""

    def __init__(self, job: SimulatedJob) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.job = job
        self.moments = [time.perf_counter()]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        names = list(self.job.setup.devices)
        chosen = self.job.participants(server_round - 1)
        for node, name in zip(sorted(grid.get_node_ids()), chosen, strict=False):
            asked = ConfigRecord({"device": names.index(name)})
            content = RecordDict({"arrays": arrays, "config": asked})
            yield Message(content=content, message_type="train", dst_node_id=node)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        found = super().aggregate_train(server_round, replies)
        self.moments.append(time.perf_counter())
        return found


def client_app(experiment: dict[str, object]) -> ClientApp:
    """An app that trains the shard that the message names."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # Flower's decorators are untyped
    def train(message: Message, _context: Context) -> Message:
        net = _network(tuple(experiment.items()))
        data = list(net.setup.devices.values())[message.content["config"]["device"]]
        net.module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net.train(data)
        content = RecordDict(
            {
                "arrays": ArrayRecord(net.module.state_dict()),
                "metrics": MetricRecord({"num-examples": len(data.y)}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


@cache
def _network(experiment: tuple[tuple[str, object], ...]) -> PlainTorch:
    """The network and all shards: loaded once in each of Ray's processes."""
    return PlainTorch(SimulatedJob(dict(experiment)))


def simulate(job: SimulatedJob) -> SimulatedRounds:
    net, found = PlainTorch(job), list[SimulatedRounds]()
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]  # Flower's decorators are untyped
    def main(grid: Grid, _context: Context) -> None:
        strategy = Scheduled(job)
        first = ArrayRecord(net.module.state_dict())
        done = strategy.start(grid=grid, initial_arrays=first, num_rounds=job.chosen.rounds)
        net.module.load_state_dict(done.arrays.to_torch_state_dict())
        seconds = [b - a for a, b in zip(strategy.moments, strategy.moments[1:], strict=False)]
        found.append(job.result(seconds, net.model))

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    backend = {"client_resources": resources, "init_args": {"num_cpus": job.workers}}
    run_simulation(server, client_app(job.experiment), len(job.setup.devices), "ray", backend)
    return found[0]
