"""Deployed rounds beside raw TCP and bare paho that do the same work, interleaved in one run.

python benchmarks/round.py [--models lenet resnet18-small] [--devices 4] [--rounds 20] [--blocks 3]
                           [--examples 64] [--device cpu] [--threads 1] [--precision float32]
                           [--json FILE]

FedEdge: one Mosquitto, one real coordinator and real agents with their trainer processes, all
promises on: updates are durable before they are acknowledged, every device exports its personal
model. Beside it the same trainings with models sent over plain TCP connections, and with a bare
paho client over the same Mosquitto. The contenders take turns, block by block; the first rounds of
a block warm up and are left out. A round lasts from one version to the next.

An observer on the broker tells where a round's time goes: `invited` until the last device is asked,
`trained` until the last report, `accepted` until the last reply, `merged` until the next state.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from bare_rounds import BareRounds, Job, rounds_over_paho, rounds_over_tcp, share
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from process_figures import Usage, trainer_of, usage
from services import service_command

from device_flags import add_device_flags
from fededge._internal.processes import Child
from fededge.broker.local import Broker
from fededge.config import AgentConfig, CoordinatorConfig, DataConfig, ModelConfig, template
from fededge.data.local import model_spec
from fededge.hardware import choose
from fededge.methods import Hyper

WARM_UP = 3
"""Rounds at the start of a block that are not counted."""

TIMEOUT = 900.0
STAGES = ("invited", "trained", "accepted", "merged")


@dataclass
class Block:
    """The rounds of one federation: seconds, stages of a round, and each process's figures."""

    seconds: list[float] = field(default_factory=list)
    stages: list[dict[str, float]] = field(default_factory=list)
    used: dict[str, Usage] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)


class Observer:
    """Notes when the messages of a round pass the broker; chunks of models are not listened to."""

    def __init__(self, port: int) -> None:
        self.states: dict[str, float] = {}
        self.first: dict[str, dict[str, float]] = {}
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, "observer", protocol=mqtt.MQTTv5)
        self.client.on_message = self._came
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        root = "fededge/v1/bench"
        kinds = ("task", "report", "reply")
        topics = [f"{root}/state", *(f"{root}/device/+/{kind}" for kind in kinds)]
        self.client.subscribe([(topic, 0) for topic in topics])

    def _came(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        now, kind = time.perf_counter(), message.topic.rsplit("/", 1)[1]
        if kind == "report":  # it may carry an update
            version = next(reversed(self.states), "")
        elif not message.payload:
            return
        else:
            told = json.loads(message.payload)
            version = told["version"]
            if kind == "reply" and told["kind"] != "accepted":
                return
        if kind == "state":
            self.states.setdefault(version, now)
        else:  # the first of a device counts: some are repeated
            self.first.setdefault(version, {}).setdefault(message.topic, now)

    def stop(self) -> None:
        self.client.loop_stop()
        self.client.disconnect()

    def block(self) -> Block:
        """The rounds between the states that came, without those that warm up."""
        found = Block()
        versions = list(self.states.items())
        for (version, began), (_, ended) in list(itertools.pairwise(versions))[WARM_UP:]:
            found.seconds.append(ended - began)
            found.stages.append(_stages(began, ended, self.first.get(version, {})))
        return found


def _stages(began: float, ended: float, first: dict[str, float]) -> dict[str, float]:
    """Seconds of the stages of a round; a device may be asked before the state is out."""
    moments = [began]
    for kind in ("task", "report", "reply"):
        times = [when for topic, when in first.items() if topic.endswith(kind)]
        moments.append(max([moments[-1], *times]))
    spans = itertools.pairwise([*moments, ended])
    return dict(zip(STAGES, (after - before for before, after in spans), strict=True))


# FedEdge


def federation(job: Job, broker: Broker, folder: Path) -> Block:
    """Run a coordinator and its agents until all rounds are done."""
    where = {"host": broker.host, "port": broker.port, "wait": 60.0}
    common = {"federation": "bench", "state": "state", "broker": where}
    agents = [
        _start(
            folder / f"agent-{index}", "agent", template(AgentConfig, _agent(common, job, index))
        )
        for index in range(job.devices)
    ]
    config = template(CoordinatorConfig, _coordinator(common, job))
    coordinator = _start(folder / "coordinator", "coordinator", config)
    observer = Observer(broker.port)
    try:
        return _watch(job, observer, broker, coordinator, agents)
    finally:
        observer.stop()
        for child in (*agents, coordinator):
            child.kill()


def _agent(common: dict[str, Any], job: Job, index: int) -> dict[str, Any]:
    data = msgspec.to_builtins(share(job.examples, index))
    asked = job.hardware
    hardware = {
        "device": asked.device,
        "threads": asked.threads,
        "precision": asked.precision.value,
    }
    return {**common, "device": f"d{index}", "data": data, "hardware": hardware}


def _coordinator(common: dict[str, Any], job: Job) -> dict[str, Any]:
    spec = msgspec.to_builtins(
        model_spec(ModelConfig(name=job.model), DataConfig(source="embedded"))
    )
    keys = ("name", "labels", "shape", "mean", "std")
    count = job.devices
    return {
        **common,
        "data": {"source": "none"},
        "model": {key: spec[key] for key in keys},
        "rounds": {"count": job.rounds, "min_devices": count, "quorum": count},
        "training": {
            "epochs": job.hyper.epochs,
            "batch_size": job.hyper.batch_size,
            "lr": job.hyper.lr,
        },
    }


def _start(folder: Path, command: str, config: str) -> Child:
    folder.mkdir(parents=True)
    path = folder / "config.toml"
    path.write_text(config)
    child = Child(service_command(command, path), folder / "log.txt")
    child.start()
    return child


def _watch(
    job: Job, observer: Observer, broker: Broker, coordinator: Child, agents: Sequence[Child]
) -> Block:
    """Look at the processes until the coordinator ends; CPU time counts after the warm-up."""
    deadline = time.monotonic() + TIMEOUT
    first: dict[str, Usage] = {}
    seen: dict[str, Usage] = {}
    while coordinator.exit_code is None:
        if time.monotonic() > deadline or any(agent.pid is None for agent in agents):
            raise SystemExit("\n".join(child.said(10) for child in (coordinator, *agents)))
        now = _usages(broker, coordinator, agents)
        seen.update({name: found for name, found in now.items() if found.rss_mb})
        if not first and len(observer.states) > WARM_UP:
            first = dict(seen)
        time.sleep(0.05)
    if coordinator.exit_code != 0:
        raise SystemExit(coordinator.said(20))
    block = observer.block()
    counted = max(1, len(block.seconds))
    block.used = seen
    block.cpu_s = {n: (u.cpu_s - first.get(n, Usage()).cpu_s) / counted for n, u in seen.items()}
    return block


def _usages(broker: Broker, coordinator: Child, agents: Sequence[Child]) -> dict[str, Usage]:
    pids = {"broker": broker.pid, "coordinator": coordinator.pid}
    for index, agent in enumerate(agents):
        pids[f"agent {index}"] = agent.pid
        pids[f"trainer {index}"] = None if agent.pid is None else trainer_of(agent.pid)
    return {name: usage(pid) for name, pid in pids.items() if pid is not None}


# The comparison


@dataclass
class Comparison:
    """All blocks of one network."""

    fededge: list[Block] = field(default_factory=list)
    tcp: list[BareRounds] = field(default_factory=list)
    paho: list[BareRounds] = field(default_factory=list)

    def row(self, model: str) -> dict[str, Any]:
        """The figures to print: medians, and ratios to the bare contenders."""
        ours = [second for block in self.fededge for second in block.seconds]
        bare = {
            name: statistics.median(s for block in blocks for s in block.seconds[WARM_UP:])
            for name, blocks in (("tcp", self.tcp), ("paho", self.paho))
        }
        middle = statistics.median(ours)
        stages = [stage for block in self.fededge for stage in block.stages]
        return {
            "model": model,
            "round_p50_s": round(middle, 4),
            "round_p95_s": round(_p95(ours), 4),
            **{f"{name}_p50_s": round(second, 4) for name, second in bare.items()},
            **{f"{name}_ratio": round(middle / second, 2) for name, second in bare.items()},
            "stages_p50_s": {
                name: round(statistics.median(stage[name] for stage in stages), 4)
                for name in STAGES
            },
            "rss_mb": _worst({n: u.peak_rss_mb for b in self.fededge for n, u in b.used.items()}),
            "cpu_s_a_round": _worst({n: s for b in self.fededge for n, s in b.cpu_s.items()}, 4),
            "broker_peak_mb": round(
                max(b.used["broker"].peak_rss_mb for b in self.fededge if "broker" in b.used), 1
            ),
        }


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def _worst(figures: dict[str, float], digits: int = 1) -> dict[str, float]:
    """The largest figure of each kind of process: 'agent 3' is an agent."""
    found: dict[str, float] = {}
    for name, figure in figures.items():
        kind = name.split()[0]
        found[kind] = round(max(found.get(kind, 0.0), figure), digits)
    return found


def compare(job: Job, blocks: int, folder: Path) -> Comparison:
    """Let the contenders take turns, in a drawn order."""
    found, draw = Comparison(), random.Random(0)
    for number in range(blocks):
        names = ["fededge", "tcp", "paho"]
        draw.shuffle(names)
        for name in names:
            place = folder / f"{job.model}-{number}-{name}"
            if name == "tcp":
                found.tcp.append(rounds_over_tcp(job))
                continue
            with Broker(place / "broker", "mosquitto") as broker:  # a new one: its memory counts
                if name == "paho":
                    found.paho.append(rounds_over_paho(job, broker.port))
                else:
                    found.fededge.append(federation(job, broker, place))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["lenet", "resnet18-small"])
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20, help="of a block, three more warm up")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--examples", type=int, default=64, help="of a device")
    add_device_flags(parser, "device", "threads", "precision")
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    hardware = choose(flags.device, flags.threads, flags.precision)
    hyper = Hyper(epochs=1, batch_size=32, lr=0.01)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for model in flags.models:
            count = flags.rounds + WARM_UP
            job = Job(model, flags.devices, flags.examples, count, hyper, hardware)
            rows.append(compare(job, flags.blocks, Path(name)).row(model))
            print("\n".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if flags.json:
        job_facts = {key: str(value) for key, value in vars(flags).items() if key != "json"}
        flags.json.write_text(json.dumps({"flags": job_facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
