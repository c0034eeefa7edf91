"""Flat-vector kernels against torch: ratios of interleaved runs, below 1 means that ours is faster.

python benchmarks/accumulate.py [--threads 1] [--rounds 31] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fededge import ops

Work = Callable[[], object]

# LeNet-5 on 28x28 images, and as many numbers as a ResNet-18 has.
LENET = [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (10, 84)]
LENET += [(10,)]
SMALL = sum(torch.Size(shape).numel() for shape in LENET)
LARGE = 11_173_962


@dataclass(frozen=True)
class Row:
    """How long ours took, and the median, best and worst ratio to the peer in the same round."""

    what: str
    peer: str
    size: int
    ours_us: float
    ratio: float
    low: float
    high: float


def seconds(work: Work, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def interleave(ours: Work, peers: dict[str, Work], rounds: int) -> dict[str, list[float]]:
    """Time everyone in turn, round after round, so that a busy machine disturbs all alike."""
    runners = {"ours": ours, **peers}
    repeats = max(1, int(0.005 / max(seconds(ours, 3), 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, work in runners.items():
            times[name].append(seconds(work, repeats))
    return times


def compare(what: str, size: int, ours: Work, peers: dict[str, Work], rounds: int) -> Iterator[Row]:
    times = interleave(ours, peers, rounds)
    for peer in peers:
        ratios = sorted(a / b for a, b in zip(times["ours"], times[peer], strict=True))
        middle = statistics.median(ratios)
        took = statistics.median(times["ours"]) * 1e6
        yield Row(what, peer, size, took, middle, ratios[0], ratios[-1])


def accumulate(size: int, dtype: torch.dtype, rounds: int) -> Iterator[Row]:
    acc, x = torch.zeros(size, dtype=dtype), torch.rand(size)
    # What the op moves at least: it reads acc and x and writes acc.
    moved = (2 * acc.nbytes + x.nbytes) // 2
    source, target = (torch.zeros(moved, dtype=torch.uint8) for _ in range(2))
    peers: dict[str, Work] = {
        "torch eager": lambda: acc.add_(x, alpha=1e-9),
        "copy of the same bytes": lambda: target.copy_(source),
    }
    name = f"accumulate_ {str(dtype).removeprefix('torch.')}"
    return compare(name, size, lambda: ops.accumulate_(acc, x, 1e-9), peers, rounds)


def parameters() -> tuple[list[nn.Parameter], Tensor]:
    """LeNet's parameters with gradients, and the same as one flat vector."""
    found = [nn.Parameter(torch.rand(shape)) for shape in LENET]
    for parameter in found:
        parameter.grad = torch.rand_like(parameter)
    return found, torch.cat([parameter.detach().reshape(-1) for parameter in found])


def sgd(momentum: float, rounds: int) -> Iterator[Row]:
    found, w = parameters()
    grad, mask = torch.rand_like(w), torch.ones_like(w)  # training always passes its mask
    buffer = torch.zeros_like(w) if momentum else None
    optimizer = torch.optim.SGD(found, lr=1e-6, momentum=momentum, weight_decay=1e-4, foreach=True)

    def ours() -> None:
        ops.sgd_step_(w, grad, buffer, lr=1e-6, momentum=momentum, weight_decay=1e-4, mask=mask)

    peers: dict[str, Work] = {"torch.optim.SGD(foreach=True)": optimizer.step}
    return compare(f"sgd_step_ momentum {momentum}", w.numel(), ours, peers, rounds)


def measure(rounds: int) -> Iterator[Row]:
    for size in (SMALL, LARGE):
        for dtype in (torch.float32, torch.float64):
            yield from accumulate(size, dtype, rounds)
    for momentum in (0.0, 0.9):
        yield from sgd(momentum, rounds)


def show(row: Row) -> None:
    print(
        f"{row.what:22} {row.size:>11,} {row.ours_us:>10.1f} us   "
        f"{row.ratio:5.2f} x {row.peer}  [{row.low:.2f} .. {row.high:.2f}]"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for row in measure(args.rounds):
        show(row)
        rows.append(row)
    if args.json:
        machine = {"machine": platform.machine(), "torch": torch.__version__, **ops.facts()}
        args.json.write_text(json.dumps({**machine, "rows": [asdict(r) for r in rows]}, indent=1))


if __name__ == "__main__":
    main()
