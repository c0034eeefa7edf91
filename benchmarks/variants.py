"""Size and accuracy of the exported variants, and the duration of an export after the first.

python benchmarks/variants.py [--data fashion-mnist] [--root FOLDER] [--models lenet resnet20]
                              [--epochs 2] [--images N] [--device cpu] [--threads 1]
                              [--precision float32] [--json FILE]

Trains each network on the whole training set, exports it, makes fp16 and int8 (calibrated on 256
training images), and measures every file with ONNX Runtime on the whole test set. The times are
medians of five exports with an existing template, as an agent makes them: fill, compare with
torch, write, swap; `quantise` is the extra time of int8. CPU time, which other programs do not
affect, is given beside wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch import nn

from device_flags import add_device_flags
from fededge.data import Dataset, load
from fededge.export import (
    VARIANTS,
    Candidate,
    ModelRegistry,
    Origin,
    Samples,
    Template,
    make_candidate,
)
from fededge.flat import FlatModel
from fededge.hardware import choose
from fededge.model_spec import ModelSpec
from fededge.models import (
    Preprocess,
    autocast,
    build_for,
    channels_last,
    computing_on,
    names,
)
from fededge.models.evaluation import accuracy
from fededge.training import prepare_threads

BATCH, CALIBRATED, REPEATS = 128, 256, 5
COMPARED = {"lenet": 64}
LEAST_COMPARED = 16


@dataclass(frozen=True)
class Row:
    """A file of a network: its bytes, ratio to float32, accuracy, and accuracy drop."""

    model: str
    variant: str
    size: int
    ratio: float
    accuracy: float
    drop: float


@dataclass(frozen=True)
class Times:
    """Milliseconds, wall-clock and CPU: the whole export, and quantising."""

    model: str
    export: tuple[float, float]
    quantise: tuple[float, float]


def train(net: nn.Module, spec: ModelSpec, data: Dataset, epochs: int, place: str) -> None:
    steps = max(1, epochs * (len(data.y) // BATCH))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    rate = 0.1 if spec.name.startswith("resnet") else 0.03
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    generator, prepare = torch.Generator().manual_seed(0), Preprocess(spec).to(place)
    net.train()
    for _ in range(epochs):
        order = torch.randperm(len(data.y), generator=generator)
        for part in order.split(BATCH)[: len(data.y) // BATCH]:
            x = channels_last(prepare(data.x[part].to(place)))
            with autocast(x):
                logits = net(x)
            loss = nn.functional.cross_entropy(logits.float(), data.y[part].to(place))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()


def origin(score: float) -> Origin:
    created = datetime.now(timezone.utc)
    return Origin(
        federation="bench", device="box", method="none", version="0", round=0,
        accuracy=score, created=created,
    )  # fmt: skip


def timed(work: object) -> tuple[float, float]:
    """Return the median milliseconds of some calls: wall-clock and CPU."""
    assert callable(work)
    clocks, cpus = [], []
    for _ in range(REPEATS):
        clock, cpu = time.perf_counter(), time.process_time()
        work()
        cpus.append(1000 * (time.process_time() - cpu))
        clocks.append(1000 * (time.perf_counter() - clock))
    return statistics.median(clocks), statistics.median(cpus)


def measure(
    spec: ModelSpec, flat: FlatModel, data: Dataset, test: Dataset
) -> tuple[Candidate, Times]:
    template = Template.trace(flat.module, spec)
    weights = [entry.name for entry in template.layout.entries]
    score = accuracy(flat.module, Preprocess(spec), test.x, test.y)
    inputs = test.x[: COMPARED.get(spec.name, LEAST_COMPARED)]
    samples = Samples(data.x[:CALIBRATED], test.x, test.y)
    few = Samples(data.x[:CALIBRATED], inputs, test.y[: len(inputs)])
    with tempfile.TemporaryDirectory() as folder:
        models = ModelRegistry(Path(folder))
        models.export(flat, template, origin(score), inputs)
        export = timed(lambda: models.export(flat, template, origin(score), inputs))
    candidate = make_candidate(flat, template, origin(score), inputs)
    quantise = timed(lambda: candidate.with_variants(("int8",), weights, few))
    return candidate.with_variants(VARIANTS, weights, samples), Times(spec.name, export, quantise)


def rows(name: str, candidate: Candidate) -> list[Row]:
    manifest = candidate.manifest
    assert manifest.accuracy is not None
    found = [Row(name, "fp32", manifest.size, 1.0, manifest.accuracy, 0.0)]
    for variant, about in manifest.variants.items():
        assert about.accuracy is not None
        drop = 100 * (manifest.accuracy - about.accuracy)
        ratio = about.size / manifest.size
        found.append(Row(name, variant, about.size, ratio, about.accuracy, drop))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default="fashion-mnist", help="default: fashion-mnist")
    parser.add_argument("--root", type=Path, metavar="FOLDER", help="folder of its files")
    parser.add_argument("--models", nargs="+", choices=names(), default=["lenet", "resnet20"])
    parser.add_argument("--epochs", type=int, default=2, help="0: as initialised; default: 2")
    parser.add_argument("--images", type=int, help="images of the test set; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    add_device_flags(parser, "device", "threads", "precision")
    args = parser.parse_args()
    hardware = choose(args.device, args.threads, args.precision)
    prepare_threads(hardware)
    data, test = load(args.data, args.root)
    assert test is not None
    test = test.subset(torch.arange(args.images or len(test)).numpy())
    everything: list[Row | Times] = []
    for name in args.models:
        spec = ModelSpec(name, data.labels, data.shape, data.mean, data.std)
        flat = FlatModel(build_for(spec, seed=0))
        flat.to(torch.device(hardware.device))
        with computing_on(hardware):
            train(flat.module, spec, data, args.epochs, hardware.device)
        flat.to(torch.device("cpu"))
        candidate, times = measure(spec, flat, data, test)
        everything += [*rows(name, candidate), times]
        show(rows(name, candidate), times)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in everything], indent=1) + "\n")


def show(found: list[Row], times: Times) -> None:
    for row in found:
        print(
            f"{row.model:15} {row.variant} {row.size:12,} bytes {row.ratio:6.3f} "
            f"{row.accuracy:8.2%} {row.drop:+6.2f} points lost"
        )
    (wall, cpu), (q_wall, q_cpu) = times.export, times.quantise
    print(
        f"{times.model:15} export {wall:.0f} ms ({cpu:.0f} of the CPU), "
        f"quantise {q_wall:.0f} ms ({q_cpu:.0f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
