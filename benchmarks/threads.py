"""The time of an epoch on the CPU by threads, and the number that `threads = 0` takes.

python benchmarks/threads.py [--models lenet resnet20] [--threads 1 2] [--batch 32] [--rounds 5]

A speedup is the median over rounds of the time with one thread over that with n, in which all
numbers take turns. It means something only where as many cores are free. Threads sleep while they
wait, as in an agent's training process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import torch

from fededge import models
from fededge.flat import FlatModel
from fededge.hardware import Hardware, Probe, threads_for, with_passive_threads
from fededge.methods import Hyper, Private, method
from fededge.model_spec import ModelSpec
from fededge.training import Examples, Task, Trainer, prepare_threads, prepare_training

LABELS = tuple("abcdefghij")
SHAPE = (3, 32, 32)


class Epoch:
    """FedAvg's local epoch over eight batches of random images."""

    def __init__(self, model: str, batch: int) -> None:
        self.spec = ModelSpec(
            name=model, head="linear", labels=LABELS, shape=SHAPE, mean=(0.5,) * 3, std=(0.5,) * 3
        )
        net = FlatModel(models.build_for(self.spec, 0))
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (8 * batch, *SHAPE), generator=draw, dtype=torch.uint8)
        y = torch.randint(0, len(LABELS), (8 * batch,), generator=draw)
        data = Examples(x, y, x[:0], y[:0], len(LABELS))
        self.task = Task(0, 0, Hyper(batch_size=batch), net.vector.clone(), {})
        self.trainer = Trainer("box", net, models.Preprocess(self.spec), data, method("fedavg"))

    def seconds(self, threads: int) -> float:
        prepare_threads(Hardware(threads=threads))
        start = time.perf_counter()
        self.trainer.turn(self.task, Private())
        return time.perf_counter() - start


def compare(model: str, counts: list[int], batch: int, rounds: int) -> None:
    epoch = Epoch(model, batch)
    for threads in counts:
        epoch.seconds(threads)  # caches are cold
    took = [[epoch.seconds(threads) for threads in counts] for _ in range(rounds)]
    macs = models.activation_counts(epoch.spec).macs
    columns = []
    for position, threads in enumerate(counts):
        ratio = statistics.median(row[0] / row[position] for row in took)
        columns.append(f"{threads}t {ratio:5.2f} x")
    chosen = threads_for(macs, Probe().cores)
    print(f"{model:16} {macs / 1e6:7.1f} M  {'  '.join(columns)}  threads = 0 takes {chosen}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [name for name in models.names() if name != "fasttext"]
    default = ["lenet", "cnn4", "resnet8", "resnet20", "resnet18-small"]
    parser.add_argument("--models", nargs="+", choices=names, default=default)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="default: 1 2")
    parser.add_argument("--batch", type=int, default=32, help="default: 32")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    args = parser.parse_args()
    passive = with_passive_threads(os.environ)
    if passive != dict(os.environ):  # read when torch is imported: begin again
        os.execve(sys.executable, [sys.executable, *sys.argv], passive)
    prepare_training()
    for model in args.models:
        compare(model, args.threads, args.batch, args.rounds)


if __name__ == "__main__":
    main()
