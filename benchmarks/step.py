"""What a method adds to local training: the time of a step, relative to FedAvg's.

python benchmarks/step.py [--models lenet] [--methods fedacd lfd] [--rounds 31] [--json FILE]

Every method takes its third turn (private state is there and settled, targets are cached), on
random images and batches of 64. A step is forward, loss, backward and the optimiser's step with
what the method notes of it; the ratio is the median over rounds in which it and FedAvg take
turns, so that a busy machine disturbs both alike; with one thread the processor's time is
counted. FedALA's steps are FedAvg's: it works before them, and its ratio is that of a whole round
of one epoch.
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

import torch
from torch import nn

from fededge.flat import FlatModel
from fededge.methods import Hyper, Private, method
from fededge.methods.base import forward
from fededge.methods.steps import LocalStep
from fededge.models import build
from fededge.training import Examples, Task, Trainer

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
BATCH = 64
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


class Device:
    """A device in its third turn under one method."""

    def __init__(self, model: str, text: str, head: str = "linear") -> None:
        shape = MODELS[model]
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (EXAMPLES, *shape), generator=draw, dtype=torch.uint8)
        # Two classes are missing, as on devices with skewed labels.
        y = torch.randint(0, CLASSES - 2, (EXAMPLES,), generator=draw)
        data = Examples(x, y, x[:0], y[:0], CLASSES)
        net = FlatModel(build(model, CLASSES, shape, 0, head=head))
        stack = method(text)
        self.trainer = Trainer("device", net, Scale(), data, stack)
        sent = dict(stack.send(stack.initial(net.layout)))
        self.private, received = Private(), net.vector.clone()
        for number in range(3):
            self.task = Task(0, number, Hyper(batch_size=BATCH), received, sent)
            if number < 2:
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
        order = torch.arange(EXAMPLES).split(BATCH)
        self.step = LocalStep(stack, turn, ((order[i % len(order)], False) for i in range(1 << 40)))
        turn.net.module.train()
        self.take_step()

    def take_step(self, times: dict[str, list[float]] | None = None) -> None:
        """A local step as training makes it, with a stop watch between its pieces."""
        stack, turn, step = self.trainer.method, self.turn_state, self.step
        batch = step.batch()
        clock = [time.perf_counter()]
        out = forward(turn.net.module, batch.x)
        clock.append(time.perf_counter())
        loss = stack.loss(turn, out, batch)
        clock.append(time.perf_counter())
        for model in step.models:
            model.zero_grad()
        loss.backward()
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


def seconds(work: Callable[[], object], repeats: int) -> float:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(repeats):
        work()
    return (clock() - start) / repeats


def compare(model: str, text: str, rounds: int) -> Row:
    head = "cosine:0.1" if text.startswith("lfd") else "linear"
    ours, base = Device(model, text, head), Device(model, "fedavg", head)
    whole = "ala" in re.split(r"\W+", text.replace("fedala", "ala"))
    work: list[Callable[[], object]] = [ours.turn, base.turn]
    if not whole:
        ours.begin()
        base.begin()
        work = [ours.take_step, base.take_step]
    repeats = 1 if whole else 4
    ratios = []
    for _ in range(rounds):
        a, b = (seconds(one, repeats) for one in work)
        ratios.append(a / b)
    split = {} if whole else pieces(ours, rounds)
    ratios.sort()
    of = "round" if whole else "step"
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    return Row(model, text, statistics.median(ratios), low, high, of, split)


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
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=31, help="default: 31")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for model in args.models:
        for text in args.methods:
            rows.append(compare(model, text, args.rounds))
            show(rows[-1])
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
