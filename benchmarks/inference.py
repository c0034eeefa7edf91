"""Latency of one input: ONNX Runtime, its INT8 file and the Predictor, relative to torch eager.

python benchmarks/inference.py [--models lenet] [--threads 1] [--turns 60] [--json FILE]

One uint8 image or one text's tokens in, probabilities out, as in an app: batch 1, on the CPU, the
same weights everywhere. torch runs in inference mode, once in its own memory order and once in
channels-last, and the faster of the two counts. The contenders alternate, ten calls each, so that
a busy machine disturbs all alike, and caches are not cold at every call. p50 and p95 are
latencies; the ratios are of median CPU times, which other programs do not affect.

Also: the time of `import fededge; fededge.Predictor` beyond onnxruntime's own import.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
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
from fededge.export import ModelRegistry, Origin, Samples, Template, make_candidate, session
from fededge.export.manifest import OUTPUT, input_name
from fededge.export.tracing import Deployed
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec
from fededge.models import build_for, channels_last, names

CLASSES = 10
GREY = ("lenet", "lenet5", "lfd-cnn", "mlpnet")
TOKENS, VOCABULARY = 200, 98_635
CALIBRATION = 64
CALLS = 10  # of each contender, one after the other
WARM_UP = 3
IMPORTS = 9

TORCHES = ("torch", "torch, channels last")
Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """Milliseconds of one input, by contender: latency, and median CPU time."""

    model: str
    p50: dict[str, float]
    p95: dict[str, float]
    cpu: dict[str, float]
    ratio: dict[str, float]


class ChannelsLast(nn.Module):
    """A deployed network with images and weights in channels-last memory order."""

    def __init__(self, deployed: Deployed) -> None:
        super().__init__()
        self.deployed = deployed.to(memory_format=torch.channels_last)

    def forward(self, image: Tensor) -> Tensor:
        network: nn.Module = self.deployed.network
        logits = network(channels_last(self.deployed.preprocess(image)))
        return torch.softmax(logits, dim=1)


def spec_of(model: str) -> ModelSpec:
    labels = tuple(f"class {number}" for number in range(CLASSES))
    if model in names("text"):
        return ModelSpec(model, labels, (TOKENS,), (), (), vocabulary=VOCABULARY)
    shape = (1, 28, 28) if model in GREY else (3, 32, 32)
    return ModelSpec(model, labels, shape, (0.5,) * shape[0], (0.25,) * shape[0])


def inputs_of(spec: ModelSpec) -> Tensor:
    generator, size = torch.Generator().manual_seed(0), (CALIBRATION, *spec.shape)
    if spec.kind == "text":
        return torch.randint(0, VOCABULARY, size, generator=generator)
    return torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)


def export(flat: FlatModel, spec: ModelSpec, inputs: Tensor, folder: Path) -> None:
    """Export as an agent does, with the INT8 file beside the float32 one."""
    origin = Origin(
        federation="bench", device="box", method="none", version="0", round=0,
        accuracy=None, created=datetime.now(timezone.utc),
    )  # fmt: skip
    template = Template.trace(flat.module, spec)
    samples = Samples(inputs, inputs, torch.zeros(len(inputs), dtype=torch.int64))
    weights = [entry.name for entry in template.layout.entries]
    candidate = make_candidate(flat, template, origin, inputs[:8]).with_variants(
        ["int8"], weights, samples
    )
    ModelRegistry(folder).publish(candidate)


def contenders(model: str, folder: Path, threads: int) -> dict[str, Call]:
    """Return each contender's call for one input."""
    spec = spec_of(model)
    flat, inputs = FlatModel(build_for(spec, seed=1)), inputs_of(spec)
    export(flat, spec, inputs, folder)
    one, feed = inputs[:1], {input_name(spec): inputs[:1].numpy()}
    eager = Deployed(flat.module, spec)
    calls: dict[str, Call] = {"torch": lambda: eager(one)}
    if spec.kind == "image":
        last = ChannelsLast(Deployed(flat.module, spec))
        calls["torch, channels last"] = lambda: last(one)
    for name, file in (("onnxruntime", "model.onnx"), ("int8", "model.int8.onnx")):
        loaded = session(folder / "current" / file, threads)
        calls[name] = lambda loaded=loaded: loaded.run([OUTPUT], feed)  # type: ignore[misc]
    predictor, item = Predictor(folder, provider="cpu", threads=threads), one[0].numpy()
    calls["Predictor"] = lambda: predictor.predict(item)
    return calls


def measure(calls: dict[str, Call], turns: int) -> dict[str, list[tuple[float, float]]]:
    """Return the milliseconds of every call, wall-clock and CPU; the contenders alternate."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    with torch.inference_mode():
        for number in range(WARM_UP + turns):
            for name, call in calls.items():
                taken = [timed(call) for _ in range(CALLS)]
                if number >= WARM_UP:
                    times[name] += taken
    return times


def timed(call: Call) -> tuple[float, float]:
    clock, cpu = time.perf_counter(), time.process_time()
    call()
    cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    return 1000 * clock, 1000 * cpu


def compare(model: str, threads: int, turns: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        times = measure(contenders(model, Path(folder), threads), turns)
    clock = {name: [wall for wall, _ in values] for name, values in times.items()}
    p50 = {name: statistics.median(values) for name, values in clock.items()}
    p95 = {name: statistics.quantiles(values, n=20)[-1] for name, values in clock.items()}
    cpu = {name: statistics.median(c for _, c in values) for name, values in times.items()}
    torchs = min(cpu[name] for name in TORCHES if name in cpu)
    ratio = {name: torchs / own for name, own in cpu.items() if name not in TORCHES}
    return Row(model, p50, p95, cpu, ratio)


def import_seconds() -> float:
    """Return the import time of the Predictor beyond onnxruntime's, from medians of processes."""
    codes = ("import onnxruntime", "import fededge; fededge.Predictor; import onnxruntime")
    times: dict[str, list[float]] = {code: [] for code in codes}
    for _ in range(IMPORTS):
        for code, mine in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            mine.append(time.perf_counter() - start)
    alone, ours = (statistics.median(mine) for mine in times.values())
    return ours - alone


def show(row: Row) -> None:
    ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in row.ratio.items())
    print(f"{row.model}: times as fast as torch: {ratios}")
    for name in row.p50:
        cells = f"{row.p50[name]:9.3f} {row.p95[name]:9.3f} {row.cpu[name]:9.3f}"
        print(f"  {name:22} {cells}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    zoo = [*names(), *names("text")]
    parser.add_argument("--models", nargs="+", choices=zoo, default=zoo)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=60, help="default: 60")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    versions = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}"
    print(f"{versions}, {platform.machine()}, {args.threads} threads; p50, p95, CPU in ms")
    extra = import_seconds()
    print(f"import fededge; fededge.Predictor: {extra:.3f} s beyond onnxruntime's own import")
    rows = []
    for model in args.models:
        rows.append(compare(model, args.threads, args.turns))
        show(rows[-1])
    if args.json:
        found: dict[str, object] = {
            "versions": versions,
            "threads": args.threads,
            "import_seconds": extra,
        }
        found["rows"] = [asdict(row) for row in rows]
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
