"""Kernels against torch, forward and backward, in turns: medians of ratios.

python benchmarks/ops.py [--ops fedacd …] [--batches 64 …] [--classes 10 …] [--threads 1 2]
                         [--compile fedacd …] [--no-compile] [--rounds 15] [--device cuda]
                         [--precision bfloat16] [--json FILE]

us                   microseconds of ours
eager_ratio          time of the same written in eager torch / ours: higher is better
compile_ratio        time of that under torch.compile / ours: higher is better
cross_entropy_ratio  ours / F.cross_entropy on the same logits: lower is better
bound                time of eager torch / that of a backward pass through a single op on a single
                     number, for as many leaves: no loss that has a gradient exceeds it

All of them go back by `ops.backward`, torch's own losses too: what it saves is the same for each,
and is not counted as a merit of our losses.

`sgd_step_` has a size instead of batch and classes, and torch.optim.SGD(foreach=True) as its eager
peer. The rows of
`pooled_convolution` are LeNet's two layers for a batch of images, with 16 output channels, forward
alone and, if `trained`, backward too. In every round all of them run once with each number of
threads, and a ratio is of one round's times. With one thread the processor's time is counted, which
a busy machine disturbs less; with more, the clock's: on a machine whose cores are taken, those say
nothing. torch.compile takes seconds for each shape, so that only the losses of --compile have that
column, with the first of the threads. At the end stands at how many of the shapes each target is
met. On another device than the CPU the clock's time is counted, until the device has finished. The
precision is that of the logits: under autocast a head gives them in less than float32.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from device_flags import add_device_flags, elapsed
from fededge import ops
from fededge.hardware import choose
from fededge.models import channels_last

Work = Callable[[], object]

BATCHES = (10, 64, 128, 1024, 8192)
CLASSES = (10, 62, 100, 200, 1000)
# LeNet-5's tensors on 28x28 images.
LENET = [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (10, 84)]
LENET += [(10,)]
SMALL = sum(torch.Size(shape).numel() for shape in LENET)


@dataclass(frozen=True)
class Row:
    """A batch of 0 is a vector, whose size is in `classes`."""

    op: str
    batch: int
    classes: int
    threads: int
    us: float
    eager_ratio: float
    compile_ratio: float | None = None
    cross_entropy_ratio: float | None = None
    bound: float | None = None


@dataclass(frozen=True)
class Case:
    """A loss of logits, ours and in eager torch; no gradient is taken of what has none."""

    ours: Callable[[Tensor], Tensor | None]
    eager: Callable[[Tensor], Tensor | None]
    gradient: bool = True
    others: tuple[Tensor, ...] = ()
    """Further tensors that get a gradient."""


Times = dict[str, list[float]]
"""Seconds of each work, round by round."""


def seconds(work: Work, repeats: int, device: str) -> float:
    def all_repeats() -> None:
        for _ in range(repeats):
            work()

    return elapsed(all_repeats, device) / repeats


def quickest(work: Work, device: str) -> float:
    """The fastest of a few calls: the first ones run with cold caches."""
    return max(1e-7, min(seconds(work, 1, device) for _ in range(4)))


def interleave(works: dict[int, dict[str, Work]], rounds: int, device: str) -> dict[int, Times]:
    """By threads and name. All take turns, so that a busy machine disturbs all alike."""
    once: dict[int, dict[str, float]] = {}
    for threads, named in works.items():
        torch.set_num_threads(threads)
        once[threads] = {name: quickest(work, device) for name, work in named.items()}
    # Slow works get fewer rounds.
    longest = sum(sum(took.values()) for took in once.values())
    times: dict[int, Times] = {n: {name: [] for name in named} for n, named in works.items()}
    for _ in range(max(5, min(rounds, int(4 / longest)))):
        for threads, named in works.items():
            torch.set_num_threads(threads)
            for name, work in named.items():
                repeats = max(1, int(0.002 / once[threads][name]))
                work()  # the turn before it was another's
                times[threads][name].append(seconds(work, repeats, device))
    return times


def ratio(times: Times, above: str, below: str) -> float:
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def flattening(z: Tensor, y: Tensor) -> Tensor:
    """FedACD's L1 as eager torch has it."""
    own = y[:, None]
    with torch.no_grad():
        log_r = z.scatter(1, own, -math.inf).log_softmax(1)
        log_ratio = (log_r + math.log(z.shape[1] - 1)).scatter_(1, own, 0.0)
    return (z.softmax(1) * log_ratio).sum(1).mean()


def soft(z: Tensor, target: Tensor) -> Tensor:
    return -(target * z.log_softmax(1)).sum(1).mean()


def divergence(z: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    student, target = (a.div(temperature).log_softmax(1) for a in (z, teacher))
    kl = F.kl_div(student, target, reduction="batchmean", log_target=True)
    return temperature**2 * kl


def without(z: Tensor, y: Tensor) -> Tensor:
    rest = torch.ones_like(z, dtype=torch.bool).scatter_(1, y[:, None], False)
    return z[rest].view(len(z), -1)


def losses(batch: int, classes: int) -> dict[str, Case]:
    """Every loss at one shape, with data of its own."""
    y, other = (torch.randint(classes, (batch,)) for _ in range(2))
    A = torch.randn(classes, classes)
    A = A - A.T
    delta, row, scale = A.exp(), torch.randn(classes), torch.rand(classes)
    teacher = torch.randn(batch, classes)
    target = teacher.softmax(1)
    psi = torch.randn(batch, classes, requires_grad=True)
    alpha = torch.bincount(y, minlength=classes) / batch
    margin = -1.5 * torch.eye(classes)
    num, den = torch.zeros(classes, classes).double(), torch.zeros(classes).double()

    def fedacd(z: Tensor, y: Tensor) -> Tensor:
        return flattening(z, y) + F.cross_entropy(z + A[y], y)

    def mixed(z: Tensor) -> Tensor:
        return 0.3 * fedacd(z, y) + 0.7 * fedacd(z, other)

    def lfd(z: Tensor) -> Tensor:
        return F.cross_entropy(z + margin[y], y) + soft(z + margin[y], target)

    def sums(z: Tensor) -> None:
        num.index_add_(0, y, z.softmax(1).double())
        den.index_add_(0, y, torch.ones_like(y, dtype=torch.float64))

    def ours(z: Tensor, *labels: Tensor) -> Tensor:
        shares = (0.3, 0.7) if len(labels) == 2 else (1.0,)
        return ops.label_loss(z, labels, shares, shift=A, factor=delta, flat=1.0)

    return {
        "fedacd": Case(lambda z: ours(z, y), lambda z: fedacd(z, y)),
        "fedacd+mixup": Case(lambda z: ours(z, y, other), mixed),
        "adjusted": Case(
            lambda z: ops.label_loss(z, (y,), shift=row), lambda z: F.cross_entropy(z + row, y)
        ),
        "adjusted by label": Case(
            lambda z: ops.label_loss(z, (y,), shift=A), lambda z: F.cross_entropy(z + A[y], y)
        ),
        "restricted": Case(
            lambda z: ops.label_loss(z, (y,), scale=scale), lambda z: F.cross_entropy(scale * z, y)
        ),
        "fused logits": Case(
            lambda z: ops.label_loss(z, (y,), added=psi, added_scale=alpha),
            lambda z: F.cross_entropy(z + alpha * psi, y),
            others=(psi,),
        ),
        "lfd": Case(lambda z: ops.label_loss(z, (y,), shift=margin, soft=1.0, target=target), lfd),
        "soft": Case(lambda z: ops.soft_cross_entropy(z, target), lambda z: soft(z, target)),
        "distillation": Case(
            lambda z: ops.distillation(z, teacher, 4.0), lambda z: divergence(z, teacher, 4.0)
        ),
        "not true": Case(
            lambda z: ops.distillation(z, teacher, 2.0, y),
            lambda z: divergence(without(z, y), without(teacher, y), 2.0),
        ),
        "probability sums": Case(
            lambda z: ops.probability_sums_(num, den, z, (y,)), sums, gradient=False
        ),
    }


def step(loss: Callable[[Tensor], Tensor | None], *leaves: Tensor) -> Work:
    """A forward pass and, if there is a gradient, a backward one."""

    def work() -> None:
        for leaf in leaves:
            leaf.grad = None
        value = loss(leaves[0])
        if value is not None:
            ops.backward(value)

    return work


def least_backward(leaves: int) -> Work:
    """A backward pass that computes nothing: the overhead of torch's engine."""
    numbers = [torch.zeros((), requires_grad=True) for _ in range(leaves)]
    return step(lambda x: x.view(()) if leaves == 1 else x + numbers[1], *numbers)


def measure_loss(name: str, batch: int, classes: int, args: argparse.Namespace) -> Iterator[Row]:
    torch.manual_seed(0)
    with torch.device(args.device):  # not while it is measured: it costs time at every call
        case = losses(batch, classes)[name]
        kind = getattr(torch, args.precision)
        z = torch.randn(batch, classes, dtype=kind, requires_grad=case.gradient)
        leaf = torch.randn(batch, classes, dtype=kind, requires_grad=True)
        y = torch.randint(classes, (batch,))
        works = {
            "ours": step(case.ours, z, *case.others),
            "eager": step(case.eager, z, *case.others),
            "cross_entropy": step(lambda z: F.cross_entropy(z, y), leaf),
            "least": least_backward(1 + len(case.others)),
        }
    each = {threads: dict(works) for threads in args.threads}
    if name in args.compile:
        torch._dynamo.reset()  # or it gives up after a few shapes, and runs the rest in eager mode
        torch.set_num_threads(args.threads[0])  # which it compiles for
        compiled = torch.compile(case.eager, dynamic=False)
        each[args.threads[0]]["compile"] = step(compiled, z, *case.others)
    for threads, took in interleave(each, args.rounds, args.device).items():
        yield Row(
            name,
            batch,
            classes,
            threads,
            statistics.median(took["ours"]) * 1e6,
            ratio(took, "eager", "ours"),
            ratio(took, "compile", "ours") if "compile" in took else None,
            ratio(took, "ours", "cross_entropy") if case.gradient else None,
            ratio(took, "eager", "least") if case.gradient else None,
        )


def sgd(momentum: float) -> tuple[Work, Work]:
    """One step for LeNet: ours on the flat vector, with the mask that training passes."""
    found = [nn.Parameter(torch.rand(shape)) for shape in LENET]
    for parameter in found:
        parameter.grad = torch.rand_like(parameter)
    w = torch.cat([parameter.detach().reshape(-1) for parameter in found])
    grad, mask = torch.rand_like(w), torch.ones_like(w)
    buffer = torch.zeros_like(w) if momentum else None
    peer = torch.optim.SGD(found, lr=1e-6, momentum=momentum, weight_decay=1e-4, foreach=True)

    def ours() -> None:
        ops.sgd_step_(w, grad, buffer, lr=1e-6, momentum=momentum, weight_decay=1e-4, mask=mask)

    return ours, peer.step


def convolution(batch: int, channels: int, side: int) -> tuple[Work, Work]:
    """One of LeNet's two with its pooling and rectifier, where no gradient is asked for."""
    layer = nn.Conv2d(channels, 16, 5).requires_grad_(False)
    weight, bias = layer.weight, layer.bias
    x = channels_last(torch.rand(batch, channels, side, side))
    peer = nn.Sequential(layer, nn.MaxPool2d(2), nn.ReLU(inplace=True))
    return lambda: ops.pooled_convolution(x, weight, bias), lambda: peer(x)


def trained_convolution(batch: int, channels: int, side: int) -> tuple[Work, Work]:
    """The same forward and backward. The images of the first have no gradient, as in training."""
    layer = nn.Conv2d(channels, 16, 5)
    weight, bias = layer.weight, layer.bias
    x = channels_last(torch.rand(batch, channels, side, side)).requires_grad_(channels > 1)
    peer = nn.Sequential(layer, nn.MaxPool2d(2), nn.ReLU(inplace=True))

    def train(out: Tensor) -> None:
        ops.backward(out.sum())
        for leaf in (x, *layer.parameters()):
            leaf.grad = None

    return lambda: train(ops.pooled_convolution(x, weight, bias)), lambda: train(peer(x))


def pairs() -> Iterator[tuple[str, int, int, Callable[[], tuple[Work, Work]]]]:
    """Ours and its peer: of vectors by their size, of images by how many there are."""
    yield "sgd_step_", 0, SMALL, partial(sgd, 0.0)
    yield "sgd_step_ momentum", 0, SMALL, partial(sgd, 0.9)
    for batch in (10, 64, 256):
        yield "pooled_convolution first", batch, 16, partial(convolution, batch, 1, 28)
        yield "pooled_convolution second", batch, 16, partial(convolution, batch, 16, 12)
        for place, channels, side in (("first", 1, 28), ("second", 16, 12)):
            trained = partial(trained_convolution, batch, channels, side)
            yield f"pooled_convolution {place} trained", batch, 16, trained


def measure(args: argparse.Namespace) -> Iterator[Row]:
    for name, batch, size, make in pairs():
        if args.ops is None or name.split()[0] in args.ops:
            with torch.device(args.device):
                ours, peer = make()
            works = {threads: {"ours": ours, "eager": peer} for threads in args.threads}
            for threads, took in interleave(works, args.rounds, args.device).items():
                us = statistics.median(took["ours"]) * 1e6
                yield Row(name, batch, size, threads, us, ratio(took, "eager", "ours"))
    for name in losses(1, 2):
        for batch in args.batches if args.ops is None or name in args.ops else ():
            for classes in args.classes:
                yield from measure_loss(name, batch, classes, args)


@dataclass(frozen=True)
class Target:
    """A target for a ratio: `at_least` if higher is better, else `at_most`."""

    column: str
    ops: tuple[str, ...]
    at_least: float = 0.0
    at_most: float = math.inf
    classes: range = range(1 << 62)

    def out_of_reach(self, row: Row) -> bool:
        return self.column == "eager_ratio" and (row.bound or math.inf) < self.at_least

    def values(self, rows: list[Row]) -> list[tuple[Row, float]]:
        mine = [row for row in rows if row.op in self.ops and row.classes in self.classes]
        found = [(row, getattr(row, self.column)) for row in mine]
        return [(row, value) for row, value in found if value is not None]

    def __str__(self) -> str:
        wish = f">= {self.at_least:.2f}" if self.at_least else f"<= {self.at_most:.2f}"
        return f"{self.ops[0]}: {self.column} {wish}"


FEDACD = ("fedacd", "fedacd+mixup")
LIGHT = ("adjusted", "adjusted by label", "restricted", "fused logits", "lfd", "soft")
TARGETS = (
    Target("eager_ratio", FEDACD[:1], at_least=5),
    Target("eager_ratio", FEDACD[1:], at_least=5),
    Target("compile_ratio", FEDACD[:1], at_least=1.5),
    Target("cross_entropy_ratio", FEDACD[:1], at_most=1.0, classes=range(100, 1 << 62)),
    Target("cross_entropy_ratio", FEDACD[:1], at_most=1.15, classes=range(10, 11)),
    *(
        Target("eager_ratio", (name,), at_least=2)
        for name in (*LIGHT, "distillation", "not true", "sgd_step_", "sgd_step_ momentum")
    ),
    Target("eager_ratio", ("probability sums",), at_least=3),
)


def summary(rows: list[Row], threads: int) -> Iterator[str]:
    """Yield for each target: the shapes that meet it, the worst and, if few, those that miss it."""
    mine = [row for row in rows if row.threads == threads]
    for target in TARGETS:
        found = target.values(mine)
        if not found:
            continue
        missed = [(r, v) for r, v in found if not target.at_least <= v <= target.at_most]
        values = [value for _, value in found]
        worst = min(values) if target.at_least else max(values)
        where = ", ".join(
            f"{row.batch}x{row.classes} {value:.2f}"
            + (f" (at most {row.bound:.2f})" if target.out_of_reach(row) else "")
            for row, value in missed
        )
        met = f"met at {len(found) - len(missed)} of {len(found)}, worst {worst:.2f}"
        yield f"{threads}t  {target!s:50} {met}{'; not at ' + where if where else ''}"


def show(row: Row) -> None:
    ratios = [f"eager {row.eager_ratio:6.2f}"]
    if row.compile_ratio is not None:
        ratios.append(f"compile {row.compile_ratio:5.2f}")
    if row.cross_entropy_ratio is not None:
        ratios.append(f"cross entropy {row.cross_entropy_ratio:5.2f}")
    if row.bound is not None:
        ratios.append(f"bound {row.bound:5.2f}")
    shape = f"{row.batch}x{row.classes}" if row.batch else f"{row.classes:,}"
    print(f"{row.op:25} {shape:>11} {row.threads}t {row.us:>10.1f} us  {'  '.join(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--ops",
        nargs="+",
        metavar="OP",
        help="only these: vectors and layers by their first word",
    )
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--classes", nargs="+", type=int, default=CLASSES)
    parser.add_argument("--threads", nargs="+", type=int, help="default: 1 2; on a GPU 1")
    parser.add_argument("--compile", nargs="+", default=["fedacd"], metavar="LOSS")
    parser.add_argument("--no-compile", dest="compile", action="store_const", const=[])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    add_device_flags(parser, "device", "precision")
    args = parser.parse_args()
    args.device = choose(args.device, precision=args.precision).device
    args.threads = args.threads or ((1, 2) if args.device == "cpu" else (1,))
    rows = []
    for row in measure(args):
        show(row)
        rows.append(row)
    for threads in args.threads:
        print(*summary(rows, threads), sep="\n")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
