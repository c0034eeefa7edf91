"""The time of a local step under each method, as ratios.

python benchmarks/step.py [--models lenet] [--methods fedavg fedacd lfd] [--batch 64] [--held-out 0]
                          [--rounds 31] [--compile] [--device cuda] [--precision bfloat16]
                          [--json FILE]

ratio                to FedAvg's step as it is trained today: what the method adds
torch_layers_ratio   to FedAvg's step with torch's own layers, without fused convolutions
plain_torch_ratio    to a plain torch loop: cross_entropy, backward and torch.optim.SGD
compiled_ratio       with --compile: to that loop with its network under torch.compile

The last three are absolute: their denominators do not change when our own kernels get faster.

Every method takes its third turn (private state is there and settled, targets are cached), on
random images and batches of 64, or of --batch: FedALA's paper has 10. A step is forward, loss,
backward and the optimiser's step with what the method notes of it. A ratio is the median over
rounds of eight steps, in which all take turns step by step, so that a busy machine disturbs
them alike; with one thread the processor's time is counted. The process is prepared as an agent's
is. On a GPU a step lasts until the device has finished, and the microseconds of its pieces are
those of their launches.

FedALA's steps are FedAvg's: it works before them, and its ratios are those of a device's whole
turn, one epoch over 640 images, without the exchange with the coordinator. Nothing is held out,
unless --held-out says how many images more a device has, on which its turn ends with an evaluation:
that is about the same for all, and brings them closer. A second row, `fedala start`, is the
device's second turn, in which the weights start and are learned until they settle; how many passes
that took is in the last column.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from device_flags import add_device_flags, elapsed
from fededge import models, ops
from fededge.flat import FlatModel, as_tensors
from fededge.hardware import CPU, Hardware, Precision, choose
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
    *("fedavg", "fedprox", "scaffold", "fedrs", "fedlc", "balanced", "fedrod", "moon", "fedacd"),
    *("fedacd+mixup", "fedala", "fedbalance", "map", "lfd"),
)
PIECES = ("forward", "loss", "backward", "step")
EXAMPLES = 640
CLASSES = 10

Times = dict[str, list[float]]
"""Seconds, by what took them."""

Split = dict[str, float]
"""The microseconds of a step, by part."""


@dataclass(frozen=True)
class Row:
    """The ratio to FedAvg with its spread, the two absolute ones, and a step's microseconds."""

    model: str
    method: str
    ratio: float
    low: float
    high: float
    torch_layers_ratio: float
    plain_torch_ratio: float
    compiled_ratio: float | None
    of: str
    split: Split = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """The network, the size of a batch, and how many images a device has beside its 640.

    `compiled` adds a plain loop under torch.compile to the comparison.
    """

    model: str
    batch: int
    held_out: int
    hardware: Hardware = CPU
    compiled: bool = False


class Device:
    """A device in a turn under one method: its third, unless told otherwise."""

    def __init__(
        self, setting: Setting, text: str, head: str, turns: int = 3, torch_layers: bool = False
    ) -> None:
        model, self.batch, self.torch_layers = setting.model, setting.batch, torch_layers
        self.hardware = setting.hardware
        draw = torch.Generator().manual_seed(1)
        net = FlatModel(build(model, CLASSES, MODELS[model], 0, head=head))
        stack = method(text)
        data = examples(setting)
        self.trainer = Trainer("device", net, Scale(), data, stack, setting.hardware)
        sent = as_tensors(stack.send(stack.initial(net.layout)))
        self.private, received = Private(), net.vector.detach().cpu().clone()
        for number in range(turns):
            self.task = Task(0, number, Hyper(batch_size=self.batch), received, sent)
            if number < turns - 1:
                self.private = self.trainer.turn(self.task, self.private).private
                received = received + 1e-3 * torch.randn(net.layout.size, generator=draw)

    def turn(self) -> None:
        with layers(self.torch_layers):
            self.trainer.turn(self.task, self.private)

    def begin(self) -> None:
        """Come to where the steps are taken; nothing after this is done once a turn only."""
        with models.computing_on(self.hardware):
            self._begin()

    def _begin(self) -> None:
        turn = self.turn_state = self.trainer._turn(self.task, self.private)
        stack = self.trainer.method
        turn.phase = stack.phases(turn)[0]
        turn.net.load(stack.begin(turn))
        order = torch.arange(EXAMPLES, device=self.hardware.device).split(self.batch)
        batches = (((order[i % len(order)], None), False) for i in range(1 << 40))
        with layers(self.torch_layers):
            self.step = LocalStep(stack, turn, batches)
        turn.net.module.train()
        self.take_step()

    def take_step(self, times: Times | None = None) -> None:
        """A local step as training makes it, with a stop watch between its pieces."""
        with models.computing_on(self.hardware):
            self._take_step(times)

    def _take_step(self, times: Times | None) -> None:
        stack, turn, step = self.trainer.method, self.turn_state, self.step
        batch = step.batch()
        clock = [time.perf_counter()]
        out = forward(step.network, batch.x)
        clock.append(time.perf_counter())
        loss = stack.loss(turn, out, batch)
        clock.append(time.perf_counter())
        for model in step.models:
            model.zero_grad()
        ops.backward(loss if step.scale is None else step.scale.scaled(loss))
        if step.scale is not None:
            step.scale.unscale_([model.grad for model in step.models])
        clock.append(time.perf_counter())
        stack.observe(turn, out, batch)
        step.apply()
        clock.append(time.perf_counter())
        for name, begin, end in zip(PIECES, clock, clock[1:], strict=False):
            if times is not None:
                times[name].append(end - begin)


class PlainLoop:
    """The same network and data in a loop that knows torch alone."""

    def __init__(self, setting: Setting, head: str, compiled: bool = False) -> None:
        data, device = examples(setting), setting.hardware.device
        self.x, self.y, self.batch = data.x.to(device), data.y.to(device), setting.batch
        self.module = build(setting.model, CLASSES, MODELS[setting.model], 0, head=head).train()
        self.module.to(device)
        self.network = torch.compile(self.module) if compiled else self.module
        self.hardware = setting.hardware
        scaled = setting.hardware.precision is Precision.FLOAT16
        self.scaler = torch.amp.GradScaler(torch.device(device).type, enabled=scaled)
        hyper = Hyper()
        self.optimiser = torch.optim.SGD(
            self.module.parameters(), lr=hyper.lr, momentum=hyper.momentum
        )
        self.order = torch.arange(EXAMPLES, device=device).split(self.batch)
        self.scale, self.taken = Scale(), 0

    def begin(self) -> None:
        self.take_step()

    def take_step(self, _times: Times | None = None) -> None:
        """The next of the batches that a `Device` takes."""
        self._step(self.order[self.taken % len(self.order)])
        self.taken += 1

    def turn(self) -> None:
        for index in torch.randperm(EXAMPLES, device=self.x.device).split(self.batch):
            self._step(index)

    def _step(self, index: torch.Tensor) -> None:
        x = self.scale(self.x[index])
        with models.computing_on(self.hardware), models.autocast(x):
            logits = self.network(x)
        loss = F.cross_entropy(logits.float(), self.y[index])
        self.optimiser.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimiser)
        self.scaler.update()


@contextmanager
def layers(torchs_own: bool) -> Iterator[None]:
    """Train with torch's own layers, pooled first, instead of fused convolutions."""
    if not torchs_own:
        yield
        return
    with mock.patch.object(models, "for_training", models.pooled_first):
        yield


def examples(setting: Setting) -> Examples:
    shape, count = MODELS[setting.model], EXAMPLES + setting.held_out
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, *shape), generator=draw, dtype=torch.uint8)
    # Two classes are missing, as on devices with skewed labels.
    y = torch.randint(0, CLASSES - 2, (count,), generator=draw)
    return Examples(x[:EXAMPLES], y[:EXAMPLES], x[EXAMPLES:], y[EXAMPLES:], CLASSES)


class Scale(nn.Module):
    """Pixels to numbers around zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / 127.5 - 1


def compare_steps(setting: Setting, text: str, rounds: int) -> Row:
    found = contenders(setting, text)
    for one in found.values():
        one.begin()
    works = {name: one.take_step for name, one in found.items()}
    took = interleaved(works, rounds, 8, setting.hardware.device)
    return row(setting, text, took, "step", pieces(found["ours"], rounds))


def compare_turns(setting: Setting, text: str, rounds: int, turns: int) -> Row:
    found = contenders(setting, text, turns)
    works = {name: one.turn for name, one in found.items()}
    took = interleaved(works, rounds, 4, setting.hardware.device)
    if turns > 2:
        return row(setting, text, took, "round")
    return row(setting, f"{text} start", took, "round", {"passes": passes(found["ours"])})


def contenders(setting: Setting, text: str, turns: int = 3) -> dict[str, Device | PlainLoop]:
    """The method, and what it is compared with by the name of the ratio."""
    head = "cosine:0.1" if text.startswith("lfd") else "linear"
    found: dict[str, Device | PlainLoop] = {
        "ours": Device(setting, text, head, turns),
        "ratio": Device(setting, "fedavg", head, turns),
        "torch_layers_ratio": Device(setting, "fedavg", head, turns, torch_layers=True),
        "plain_torch_ratio": PlainLoop(setting, head),
    }
    if setting.compiled:
        found["compiled_ratio"] = PlainLoop(setting, head, compiled=True)
    return found


def compare(setting: Setting, text: str, rounds: int) -> list[Row]:
    if "ala" in re.split(r"\W+", text.replace("fedala", "ala")):
        return [compare_turns(setting, text, rounds, turns) for turns in (3, 2)]
    return [compare_steps(setting, text, rounds)]


def interleaved(
    works: Mapping[str, Callable[[], object]], rounds: int, repeats: int, device: str
) -> Times:
    """Let all take turns, call by call, in a new order each time.

    In a fixed cycle one would always follow the same other, whose caches it finds: FedAvg beside
    itself was then 1.01 to 1.06.
    """
    took: Times = {name: [] for name in works}
    order, draw = list(works), random.Random(0)
    for _ in range(rounds):
        total = dict.fromkeys(works, 0.0)
        for _ in range(repeats):
            draw.shuffle(order)
            for name in order:
                total[name] += elapsed(works[name], device)
        for name in works:
            took[name].append(total[name])
    return took


def row(setting: Setting, text: str, took: Times, of: str, split: Split | None = None) -> Row:
    """Medians of the ratios of each round, and where eight of ten lie."""
    ratios = {
        name: sorted(a / b for a, b in zip(took["ours"], times, strict=True))
        for name, times in took.items()
    }
    middle = {name: statistics.median(found) for name, found in ratios.items()}
    spread, tenth = ratios["ratio"], len(took["ours"]) // 10
    return Row(
        setting.model,
        text,
        middle["ratio"],
        spread[tenth],
        spread[-1 - tenth],
        middle["torch_layers_ratio"],
        middle["plain_torch_ratio"],
        middle.get("compiled_ratio"),
        of,
        split or {},
    )


def passes(device: Device | PlainLoop) -> int:
    """The passes over the slice until ALA's weights had converged."""
    with mock.patch.object(Mixture, "learn", autospec=True, side_effect=Mixture.learn) as learn:
        device.turn()
    return learn.call_count


def pieces(device: Device | PlainLoop, rounds: int) -> Split:
    """The median microseconds of each piece of a step."""
    times: Times = {name: [] for name in PIECES}
    for _ in range(rounds):
        device.take_step(times)
    return {name: statistics.median(values) * 1e6 for name, values in times.items()}


def show(row: Row) -> None:
    split = "  ".join(f"{name} {us:,.0f}" for name, us in row.split.items())
    spread = f"[{row.low:.2f} .. {row.high:.2f}]"
    absolute = (
        f"torch layers {row.torch_layers_ratio:5.3f}  plain torch {row.plain_torch_ratio:5.3f}"
    )
    if row.compiled_ratio is not None:
        absolute += f"  compiled {row.compiled_ratio:5.3f}"
    name = f"{row.model:8} {row.method:14}"
    print(f"{name} {row.ratio:5.3f} a {row.of:5} {spread:16} {absolute}  {split}")


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
    parser.add_argument("--compile", action="store_true", help="compare with torch.compile too")
    add_device_flags(parser, "device", "precision")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    args = parser.parse_args()
    hardware = choose(args.device, args.threads, args.precision)
    prepare_training(hardware)
    torch.backends.cudnn.allow_tf32 = False  # as in a turn: no contender computes in less
    rows = []
    for model in args.models:
        for text in args.methods:
            setting = Setting(model, args.batch, args.held_out, hardware, args.compile)
            found = compare(setting, text, args.rounds)
            rows += found
            for row in found:
                show(row)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
