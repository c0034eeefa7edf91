from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import onnx
import pytest
import torch
from torch import Tensor

from fededge import __version__
from fededge.errors import ExportError, StoreError
from fededge.export import (
    Candidate,
    ModelFacts,
    ModelManifest,
    ModelRegistry,
    Origin,
    Template,
    check,
    session,
)
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec
from fededge.models import build


def test_an_export_is_found_under_current_with_a_manifest_that_fits(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    models = ModelRegistry(tmp_path / "models")
    manifest = models.export(flat, template, origin, images)
    model = (tmp_path / "models" / "current" / "model.onnx").read_bytes()
    assert manifest.sha256 == hashlib.sha256(model).hexdigest()
    assert manifest.size == len(model)
    assert manifest.compared == 100
    assert 0 <= manifest.difference < 1e-5
    assert models.current() == manifest
    assert (tmp_path / "models" / "current").readlink() == Path("1")


def test_the_manifest_tells_app_and_operator_what_the_model_is(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    ModelRegistry(tmp_path).export(flat, template, origin, images)
    written = json.loads((tmp_path / "current" / "manifest.json").read_text("utf-8"))
    for key in ("sha256", "size", "compared", "difference", "variants", "use", "signature"):
        del written[key]
    assert written == {
        "federation": "yard",
        "device": "camera-7",
        "method": "fedavg+map",
        "run": "",
        "version": "000012-0123456789abcdef",
        "round": 34,
        "accuracy": 0.875,
        "created": "2025-03-01T12:30:00Z",
        "labels": ["truck", "bicycle", "päckchen"],
        "input": {"name": "image", "shape": [3, 8, 8], "dtype": "uint8", "range": [0, 255]},
        "layout": flat.layout.hash,
        "weights": flat.layout.sha256(flat.vector),
        "fededge": __version__,
    }


def test_the_metadata_inside_the_file_says_the_same_as_the_manifest(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    ModelRegistry(tmp_path).export(flat, template, origin, images)
    manifest = json.loads((tmp_path / "current" / "manifest.json").read_text("utf-8"))
    inside = {p.key: p.value for p in onnx.load(tmp_path / "current/model.onnx").metadata_props}
    texts = {"federation", "device", "method", "run", "version", "created", "layout", "weights"}
    texts.add("fededge")
    for key, value in inside.items():
        assert manifest[key] == (value if key in texts else json.loads(value)), key
    beside = {"sha256", "size", "compared", "difference", "variants", "use", "signature"}
    assert manifest.keys() - inside.keys() == beside
    assert session(tmp_path / "current/model.onnx").get_modelmeta().custom_metadata_map == inside


def test_an_export_that_disagrees_is_not_published(
    flat: FlatModel,
    template: Template,
    origin: Origin,
    images: Tensor,
    tmp_path: Path,
    spec: ModelSpec,
) -> None:
    """A template of other code: the old model stays current, byte for byte."""
    models = ModelRegistry(tmp_path)
    before = models.export(flat, template, origin, images)
    wrong = Template(template.layout, spec, template.head, template.graph.replace(b"Relu", b"Tanh"))
    assert wrong != template
    with pytest.raises(ExportError, match="differs from torch"):
        models.export(flat, wrong, origin, images)
    assert models.current() == before
    assert names(tmp_path) == ["1", "current"]


def test_bytes_that_were_not_compared_are_not_published(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor
) -> None:
    facts = ModelFacts.of(origin, template.spec, template.layout, flat.vector)
    model = template.fill(flat.vector, facts.metadata())
    parity = check(model, flat.module, template.spec, images)
    other = template.fill(torch.zeros_like(flat.vector), facts.metadata())
    with pytest.raises(ExportError, match="not the one that was compared"):
        Candidate.of(other, parity, facts)


def test_the_last_few_models_are_kept(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    models = ModelRegistry(tmp_path, keep=2)
    for number in range(12):
        models.export(flat, template, msgspec.structs.replace(origin, round=number), images)
    assert names(tmp_path) == ["10", "11", "12", "current"]  # 10 was current when 12 came
    current = models.current()
    assert current is not None
    assert current.round == 11
    assert ModelManifest.read(tmp_path / "11" / "manifest.json").round == 10


def test_leftovers_of_a_crash_are_cleared(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    (tmp_path / ".new").mkdir()
    (tmp_path / ".new" / "model.onnx").write_bytes(b"half")
    (tmp_path / ".current.new").symlink_to("nowhere")
    (tmp_path / "4").mkdir()  # written, but the link was not swapped any more
    manifest = ModelRegistry(tmp_path).export(flat, template, origin, images)
    assert ModelRegistry(tmp_path).current() == manifest
    assert names(tmp_path) == ["4", "5", "current"]


def test_before_the_first_export_nothing_is_current(tmp_path: Path) -> None:
    assert ModelRegistry(tmp_path / "absent").current() is None


def test_a_damaged_manifest_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "manifest.json").write_text('{"federation": 1}')
    (tmp_path / "current").symlink_to("1")
    with pytest.raises(StoreError, match=r"manifest\.json: not a manifest"):
        ModelRegistry(tmp_path).current()


def test_a_folder_that_cannot_be_written_is_said_so(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(StoreError, match="models"):
        ModelRegistry(tmp_path / "models").export(flat, template, origin, images)


def test_an_accuracy_may_be_unknown_and_a_time_has_a_zone(origin: Origin) -> None:
    unknown = msgspec.structs.replace(origin, accuracy=None)
    encoded = msgspec.json.encode(unknown)
    assert msgspec.json.decode(encoded, type=Origin) == unknown
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(encoded.replace(b"12:30:00Z", b"12:30:00"), type=Origin)


def names(folder: Path) -> list[str]:
    """The models and the link; the record and the lock are beside them."""
    return sorted({path.name for path in folder.iterdir()} - {"index.json", ".lock"})


# Imports once, then forks a writer whenever it is told to: each is killed by the test. Some make
# whole exports, with variants; some only write, promote and roll back, as fast as they can.
WRITERS = """
import hashlib, os, sys
from itertools import count
from pathlib import Path
import msgspec, torch
import onnxruntime.quantization
from fededge.export import Candidate, ModelFacts, ModelRegistry, Origin, Parity, Samples
from fededge.export import Template, make_candidate
from fededge.flat import FlatModel
from fededge.models import build
torch.set_num_threads(1)
folder, kept = map(Path, sys.argv[1:])
origin = msgspec.json.decode(sys.stdin.buffer.readline(), type=Origin)
template, models = Template.load(kept), ModelRegistry(folder)
images = torch.randint(0, 256, (8, 1, 28, 28), dtype=torch.uint8)

def whole(i):
    flat = FlatModel(build("lenet", 3, (1, 28, 28), seed=i))
    samples = Samples(images, images, torch.zeros(8, dtype=torch.int64))
    names = [entry.name for entry in template.layout.entries]
    candidate = make_candidate(flat, template, origin, images)
    return candidate.with_variants(("fp16", "int8"), names, samples).preferring("int8", 100.0)

def ready(i):
    vector = torch.full((template.layout.size,), 0.01 * i)
    facts = ModelFacts.of(origin, template.spec, template.layout, vector)
    model = template.fill(vector, facts.metadata())
    return Candidate.of(model, Parity(hashlib.sha256(model).hexdigest(), 1, 0.0, 1, None), facts)

for line in sys.stdin.buffer:
    child = os.fork()
    if not child:
        for i in count(1):
            models.publish(whole(i) if line == b"whole\\n" else ready(i))
            if i == 1:
                print("under way", flush=True)
            if line == b"write\\n" and i % 3 == 0:
                models.roll_back()
            if line == b"write\\n" and i % 5 == 0:
                models.mark_bad(models.number(), "why not")
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""
KILLS = 50


@pytest.mark.slow
def test_current_is_loadable_whenever_the_writer_is_killed(
    spec: ModelSpec, origin: Origin, tmp_path: Path
) -> None:
    """50 writers are killed with SIGKILL at random moments: what `current` leads to is whole."""
    spec = ModelSpec("lenet", spec.labels, (1, 28, 28), (0.5,), (0.25,))
    lenet = build("lenet", spec.classes, spec.shape, seed=0)
    Template.trace(lenet, spec).save(tmp_path / "template")
    folder, moments = tmp_path / "models", random.Random(5)
    command = [sys.executable, "-c", WRITERS, str(folder), str(tmp_path / "template")]
    seen = set()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        writers.stdin.write(msgspec.json.encode(origin) + b"\n")
        for number in range(KILLS):
            writers.stdin.write(b"whole\n" if number % 2 else b"write\n")
            writers.stdin.flush()
            lines = {writers.stdout.readline().strip(), writers.stdout.readline().strip()}
            (child,) = lines - {b"under way"}
            time.sleep(moments.uniform(0, 0.4 if number % 2 else 0.05))
            subprocess.run(["kill", f"-{signal.SIGKILL.value}", child], check=True)
            assert writers.stdout.readline() == b"gone\n"
            check_loadable(ModelRegistry(folder))
            seen.add((folder / "current").readlink().name)
        writers.stdin.close()
    assert writers.returncode == 0
    assert len(seen) > KILLS / 2


def check_loadable(models: ModelRegistry) -> None:
    """Every file of the current model has its hash and loads, and the record can be read."""
    manifest, number = models.current(), models.number()
    assert manifest is not None
    assert number is not None
    files = {"model.onnx": manifest.sha256}
    files |= {variant.file: variant.sha256 for variant in manifest.variants.values()}
    for name, digest in files.items():
        data = (models.path(number) / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
        session(data).get_inputs()
    assert models.index().trail[-1] == number
