"""How long one image takes: ONNX Runtime and the Predictor around it, relative to torch eager.

python benchmarks/inference.py [--models lenet] [--threads 1] [--rounds 300] [--json FILE]

One uint8 image, pixels in, probabilities out, as an app asks for it: batch 1, float32, on the CPU,
the same weights everywhere. torch runs in inference mode, once with its own memory order and once
with channels last, and the faster of the two counts. The candidates take turns in every round,
so that a busy machine disturbs all alike. p50 and p95 are latencies; the ratio is that of the
medians of the CPU's time, which other programs do not take part in.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

from fededge import Predictor
from fededge.export import Models, Origin, Template, session
from fededge.export.tracing import INPUT, OUTPUT, Deployed
from fededge.flat import FlatModel
from fededge.models import build, names
from fededge.models.base import channels_last
from fededge.spec import ModelSpec

CLASSES = 10
SIDES = {1: 28, 3: 32}
GREY = ("lenet", "lenet5", "lfd-cnn", "mlpnet")
WARM_UP = 20

Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """Milliseconds of one image, by candidate: latency, and the median of the CPU's time."""

    model: str
    p50: dict[str, float]
    p95: dict[str, float]
    cpu: dict[str, float]
    ratio: float


class ChannelsLast(nn.Module):
    """A deployed network whose images and weights have their channels side by side."""

    def __init__(self, deployed: Deployed) -> None:
        super().__init__()
        self.deployed = deployed.to(memory_format=torch.channels_last)

    def forward(self, image: Tensor) -> Tensor:
        network: nn.Module = self.deployed.network
        logits = network(channels_last(self.deployed.preprocess(image)))
        return torch.softmax(logits, dim=1)


def candidates(model: str, folder: Path, threads: int) -> dict[str, Call]:
    """One image through each of them."""
    channels = 1 if model in GREY else 3
    shape = (channels, SIDES[channels], SIDES[channels])
    labels = tuple(f"class {number}" for number in range(CLASSES))
    spec = ModelSpec(model, labels, shape, (0.5,) * channels, (0.25,) * channels)
    flat = FlatModel(build(model, CLASSES, shape, seed=1))
    images = torch.randint(0, 256, (8, *shape), dtype=torch.uint8)
    created = datetime.now(timezone.utc)
    origin = Origin(
        federation="bench", device="box", method="none", version="0", round=0,
        accuracy=None, created=created,
    )  # fmt: skip
    Models(folder).export(flat, Template.trace(flat.module, spec), origin, images)
    eager, last = Deployed(flat.module, spec), ChannelsLast(Deployed(flat.module, spec))
    loaded = session(folder / "current" / "model.onnx", threads)
    predictor = Predictor(folder, provider="cpu", threads=threads)
    image, pixels = images[:1], images[:1].numpy()
    return {
        "torch": lambda: eager(image),
        "torch, channels last": lambda: last(image),
        "onnxruntime": lambda: loaded.run([OUTPUT], {INPUT: pixels}),
        "Predictor": lambda: predictor.predict(pixels[0]),
    }


def measure(calls: dict[str, Call], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """The milliseconds of every call, in turns: on the clock, and of the CPU."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    with torch.inference_mode():
        for number in range(WARM_UP + rounds):
            for name, call in calls.items():
                clock, cpu = time.perf_counter(), time.process_time()
                call()
                cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
                if number >= WARM_UP:
                    times[name].append((1000 * clock, 1000 * cpu))
    return times


def compare(model: str, threads: int, rounds: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        times = measure(candidates(model, Path(folder), threads), rounds)
    clock = {name: [wall for wall, _ in values] for name, values in times.items()}
    p50 = {name: statistics.median(values) for name, values in clock.items()}
    p95 = {name: statistics.quantiles(values, n=20)[-1] for name, values in clock.items()}
    cpu = {name: statistics.median(c for _, c in values) for name, values in times.items()}
    ratio = min(cpu["torch"], cpu["torch, channels last"]) / cpu["onnxruntime"]
    return Row(model, p50, p95, cpu, ratio)


def show(row: Row) -> None:
    print(f"{row.model}: ONNX Runtime is {row.ratio:.2f} times as fast as torch")
    for name in row.p50:
        cells = f"{row.p50[name]:9.3f} {row.p95[name]:9.3f} {row.cpu[name]:9.3f}"
        print(f"  {name:22} {cells}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=names(), default=list(names()))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=300, help="default: 300")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    versions = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}"
    print(f"{versions}, {platform.machine()}, {args.threads} threads; p50, p95, CPU in ms")
    rows = []
    for model in args.models:
        rows.append(compare(model, args.threads, args.rounds))
        show(rows[-1])
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
