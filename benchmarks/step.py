"""What a method adds to local training: the time of a step, relative to FedAvg's.

python benchmarks/step.py [--models lenet] [--methods fedacd lfd] [--batch 64] [--held-out 0]
                          [--rounds 31] [--json FILE]

Every method takes its third turn (private state is there and settled, targets are cached), on
random images and batches of 64, or of --batch: FedALA's paper has 10. A step is forward, loss,
backward and the optimiser's step with what the method notes of it; the ratio is the median over
rounds of eight steps, in which it and FedAvg take turns step by step, so that a busy machine
disturbs both alike; with one thread the processor's time is counted. The process is prepared as
an agent's is.

FedALA's steps are FedAvg's: it works before them, and its ratio is that of a device's whole turn,
one epoch over 640 images, without the exchange with the coordinator. Nothing is held out, unless
--held-out says how many images more a device has, on which its turn ends with an evaluation: that
is about the same for both, and brings them closer. A second row, `fedala start`, is the device's
second turn, in which the weights start and are learned until they settle; how many passes that
took is in the last column.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

import torch
from torch import nn

from fededge import ops
from fededge.flat import FlatModel, as_tensors
from fededge.method.base import forward
from fededge.methods import Hyper, Private, method
from fededge.methods.ala import Mixture
from fededge.models import build
from fededge.training import Examples, Task, Trainer, prepare_training
from fededge.training.step import LocalStep

MODELS: dict[str, tuple[int, int, int]] = {
    "lenet": (1, 28, 28),
    "tfcnn": (3, 32, 32),
    "resnet8": (3, 32, 32),
}
METHODS = (
    *("fedprox", "scaffold", "fedrs", "fedlc", "balanced", "fedrod", "moon", "fedacd"),
    *("fedacd+mixup", "fedala", "fedbalance", "map", "lfd"),
)
PIECES = ("forward", "loss", "backward", "step")
EXAMPLES = 640
CLASSES = 10


@dataclass(frozen=True)
class Row:
    """A ratio to FedAvg, its spread, and where the microseconds of a step go."""

    model: str
    method: str
    ratio: float
    low: float
    high: float
    of: str
    split: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """The network, the size of a batch, and how many images a device has beside its 640."""

    model: str
    batch: int
    held_out: int


class Device:
    """A device in a turn under one method: its third, unless told otherwise."""

    def __init__(self, setting: Setting, text: str, head: str = "linear", turns: int = 3) -> None:
        model, self.batch = setting.model, setting.batch
        shape, count = MODELS[model], EXAMPLES + setting.held_out
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (count, *shape), generator=draw, dtype=torch.uint8)
        # Two classes are missing, as on devices with skewed labels.
        y = torch.randint(0, CLASSES - 2, (count,), generator=draw)
        data = Examples(x[:EXAMPLES], y[:EXAMPLES], x[EXAMPLES:], y[EXAMPLES:], CLASSES)
        net = FlatModel(build(model, CLASSES, shape, 0, head=head))
        stack = method(text)
        self.trainer = Trainer("device", net, Scale(), data, stack)
        sent = as_tensors(stack.send(stack.initial(net.layout)))
        self.private, received = Private(), net.vector.clone()
        for number in range(turns):
            self.task = Task(0, number, Hyper(batch_size=self.batch), received, sent)
            if number < turns - 1:
                self.private = self.trainer.turn(self.task, self.private).private
                received = received + 1e-3 * torch.randn(net.layout.size, generator=draw)

    def turn(self) -> None:
        self.trainer.turn(self.task, self.private)

    def begin(self) -> None:
        """Come to where the steps are taken; nothing after this is done once a turn only."""
        turn = self.turn_state = self.trainer._turn(self.task, self.private)
        stack = self.trainer.method
        turn.phase = stack.phases(turn)[0]
        turn.net.load(stack.begin(turn))
        order = torch.arange(EXAMPLES).split(self.batch)
        self.step = LocalStep(stack, turn, ((order[i % len(order)], False) for i in range(1 << 40)))
        turn.net.module.train()
        self.take_step()

    def take_step(self, times: dict[str, list[float]] | None = None) -> None:
        """A local step as training makes it, with a stop watch between its pieces."""
        stack, turn, step = self.trainer.method, self.turn_state, self.step
        batch = step.batch()
        clock = [time.perf_counter()]
        out = forward(step.network, batch.x)
        clock.append(time.perf_counter())
        loss = stack.loss(turn, out, batch)
        clock.append(time.perf_counter())
        for model in step.models:
            model.zero_grad()
        ops.backward(loss)
        clock.append(time.perf_counter())
        stack.observe(turn, out, batch)
        float(loss.detach())
        step.apply()
        clock.append(time.perf_counter())
        for name, begin, end in zip(PIECES, clock, clock[1:], strict=False):
            if times is not None:
                times[name].append(end - begin)


class Scale(nn.Module):
    """Pixels to numbers around zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / 127.5 - 1


def seconds(work: Callable[[], object]) -> float:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    work()
    return clock() - start


def compare_steps(setting: Setting, text: str, rounds: int) -> Row:
    head = "cosine:0.1" if text.startswith("lfd") else "linear"
    ours, base = Device(setting, text, head), Device(setting, "fedavg", head)
    ours.begin()
    base.begin()
    ratios = interleaved(ours.take_step, base.take_step, rounds, repeats=8)
    return Row(setting.model, text, *ratios, "step", pieces(ours, rounds))


def compare_turns(setting: Setting, text: str, rounds: int, turns: int) -> Row:
    ours, base = Device(setting, text, turns=turns), Device(setting, "fedavg", turns=turns)
    ratios = interleaved(ours.turn, base.turn, rounds)
    if turns > 2:
        return Row(setting.model, text, *ratios, "round")
    return Row(setting.model, f"{text} start", *ratios, "round", {"passes": passes(ours)})


def compare(setting: Setting, text: str, rounds: int) -> list[Row]:
    if "ala" in re.split(r"\W+", text.replace("fedala", "ala")):
        return [compare_turns(setting, text, rounds, turns) for turns in (3, 2)]
    return [compare_steps(setting, text, rounds)]


def interleaved(
    ours: Callable[[], object], base: Callable[[], object], rounds: int, repeats: int = 2
) -> tuple[float, float, float]:
    """The median ratio of two pieces of work that take turns, and where eight of ten lie."""
    ratios = sorted(ratio(ours, base, repeats) for _ in range(rounds))
    tenth = len(ratios) // 10
    return statistics.median(ratios), ratios[tenth], ratios[-1 - tenth]


def ratio(ours: Callable[[], object], base: Callable[[], object], repeats: int) -> float:
    """Of a few calls of each, one by one, in which each goes first as often as the other."""
    took = {ours: 0.0, base: 0.0}
    for i in range(repeats):
        for work in (base, ours) if i % 2 else (ours, base):
            took[work] += seconds(work)
    return took[ours] / took[base]


def passes(device: Device) -> int:
    """How many passes over the slice it took until ALA's weights had settled."""
    with mock.patch.object(Mixture, "learn", autospec=True, side_effect=Mixture.learn) as learn:
        device.turn()
    return learn.call_count


def pieces(device: Device, rounds: int) -> dict[str, float]:
    """The median microseconds of each piece of a step."""
    times: dict[str, list[float]] = {name: [] for name in PIECES}
    for _ in range(rounds):
        device.take_step(times)
    return {name: statistics.median(values) * 1e6 for name, values in times.items()}


def show(row: Row) -> None:
    split = "  ".join(f"{name} {us:,.0f}" for name, us in row.split.items())
    spread = f"[{row.low:.2f} .. {row.high:.2f}]"
    print(f"{row.model:8} {row.method:14} {row.ratio:5.3f} a {row.of:5} {spread:16} {split}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--batch", type=int, default=64, help="default: 64")
    parser.add_argument("--held-out", type=int, default=0, metavar="IMAGES", help="default: 0")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=31, help="default: 31")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    args = parser.parse_args()
    prepare_training()
    torch.set_num_threads(args.threads)
    rows = []
    for model in args.models:
        for text in args.methods:
            found = compare(Setting(model, args.batch, args.held_out), text, args.rounds)
            rows += found
            for row in found:
                show(row)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
