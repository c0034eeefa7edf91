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
from torch import Tensor, nn

from fededge import __version__
from fededge.errors import ExportError, StoreError
from fededge.export import Facts, Manifest, Models, Origin, Template, check, session
from fededge.flat import FlatModel
from fededge.spec import ModelSpec


@pytest.fixture
def flat(network: nn.Module) -> FlatModel:
    return FlatModel(network)


@pytest.fixture
def template(flat: FlatModel, spec: ModelSpec) -> Template:
    return Template.trace(flat.module, spec)


def test_an_export_is_found_under_current_with_a_manifest_that_fits(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    models = Models(tmp_path / "models")
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
    Models(tmp_path).export(flat, template, origin, images)
    written = json.loads((tmp_path / "current" / "manifest.json").read_text("utf-8"))
    for key in ("sha256", "size", "compared", "difference"):
        del written[key]
    assert written == {
        "federation": "yard",
        "device": "camera-7",
        "method": "fedavg+map",
        "version": "000012-0123456789abcdef",
        "round": 34,
        "accuracy": 0.875,
        "created": "2025-03-01T12:30:00Z",
        "labels": ["truck", "bicycle", "päckchen"],
        "input": {"name": "image", "shape": [3, 8, 8], "dtype": "uint8", "range": [0, 255]},
        "layout": flat.layout.hash,
        "fededge": __version__,
    }


def test_the_metadata_inside_the_file_says_the_same_as_the_manifest(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    Models(tmp_path).export(flat, template, origin, images)
    manifest = json.loads((tmp_path / "current" / "manifest.json").read_text("utf-8"))
    inside = {p.key: p.value for p in onnx.load(tmp_path / "current/model.onnx").metadata_props}
    texts = {"federation", "device", "method", "version", "created", "layout", "fededge"}
    for key, value in inside.items():
        assert manifest[key] == (value if key in texts else json.loads(value)), key
    assert manifest.keys() - inside.keys() == {"sha256", "size", "compared", "difference"}
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
    models = Models(tmp_path)
    before = models.export(flat, template, origin, images)
    wrong = Template(template.layout, spec, template.head, template.graph.replace(b"Relu", b"Tanh"))
    assert wrong != template
    with pytest.raises(ExportError, match="differs from torch"):
        models.export(flat, wrong, origin, images)
    assert models.current() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "current"]


def test_bytes_that_were_not_compared_are_not_published(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    facts = Facts.of(origin, template.spec, template.layout)
    model = template.fill(flat.vector, facts.metadata())
    parity = check(model, flat.module, template.spec, images)
    other = template.fill(torch.zeros_like(flat.vector), facts.metadata())
    with pytest.raises(ExportError, match="not the one that was compared"):
        Models(tmp_path).publish(other, parity, facts)
    assert not list(tmp_path.iterdir())


def test_the_last_few_models_are_kept(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    models = Models(tmp_path, keep=2)
    for number in range(12):
        models.export(flat, template, msgspec.structs.replace(origin, round=number), images)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["11", "12", "current"]
    current = models.current()
    assert current is not None
    assert current.round == 11
    assert Manifest.read(tmp_path / "11" / "manifest.json").round == 10


def test_what_a_crash_left_behind_is_cleared(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    (tmp_path / ".new").mkdir()
    (tmp_path / ".new" / "model.onnx").write_bytes(b"half")
    (tmp_path / ".current.new").symlink_to("nowhere")
    (tmp_path / "4").mkdir()  # written, but the link was not swapped any more
    manifest = Models(tmp_path).export(flat, template, origin, images)
    assert Models(tmp_path).current() == manifest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5", "current"]


def test_before_the_first_export_nothing_is_current(tmp_path: Path) -> None:
    assert Models(tmp_path / "absent").current() is None


def test_a_damaged_manifest_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "manifest.json").write_text('{"federation": 1}')
    (tmp_path / "current").symlink_to("1")
    with pytest.raises(StoreError, match=r"manifest\.json: not a manifest"):
        Models(tmp_path).current()


def test_a_folder_that_cannot_be_written_is_said_so(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(StoreError, match="models"):
        Models(tmp_path / "models").export(flat, template, origin, images)


def test_an_accuracy_may_be_unknown_and_a_time_has_a_zone(origin: Origin) -> None:
    unknown = msgspec.structs.replace(origin, accuracy=None)
    encoded = msgspec.json.encode(unknown)
    assert msgspec.json.decode(encoded, type=Origin) == unknown
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(encoded.replace(b"12:30:00Z", b"12:30:00"), type=Origin)


# Imports once, then forks a writer whenever it is told to: each is killed by the test.
WRITERS = """
import os, sys
from itertools import count
from pathlib import Path
import msgspec
from fededge.export import Facts, Models, Parity
facts = msgspec.json.decode(sys.stdin.buffer.readline(), type=Facts)
paths = [Path(p) for p in sys.argv[2:]]
models = Models(Path(sys.argv[1]))
ready = [(p.read_bytes(), Parity(p.stem, 1, 0.0, 1, None)) for p in paths]
for _ in sys.stdin.buffer:
    child = os.fork()
    if not child:
        for i in count():
            models.publish(*ready[i % 2], facts)
            if i == 2:
                print("under way", flush=True)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def test_current_is_loadable_whenever_the_writer_is_killed(
    flat: FlatModel, template: Template, origin: Origin, images: Tensor, tmp_path: Path
) -> None:
    """Ten writers are killed with SIGKILL at random moments while they publish in a loop."""
    facts = Facts.of(origin, template.spec, template.layout)
    paths = [stored(tmp_path, template.fill(flat.vector * f, facts.metadata())) for f in (1, 2)]
    folder = tmp_path / "models"
    command = [sys.executable, "-c", WRITERS, str(folder), *map(str, paths)]
    moments = random.Random(5)
    seen = set()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        writers.stdin.write(msgspec.json.encode(facts) + b"\n")
        for _ in range(10):
            writers.stdin.write(b"go\n")
            writers.stdin.flush()
            lines = {writers.stdout.readline().strip(), writers.stdout.readline().strip()}
            (child,) = lines - {b"under way"}
            time.sleep(moments.uniform(0, 0.03))
            subprocess.run(["kill", f"-{signal.SIGKILL.value}", child], check=True)
            assert writers.stdout.readline() == b"gone\n"
            model = (folder / "current" / "model.onnx").read_bytes()
            session(model).get_inputs()
            manifest = Models(folder).current()
            assert manifest is not None
            assert manifest.sha256 == hashlib.sha256(model).hexdigest()
            seen.add((folder / "current").readlink().name)
        writers.stdin.close()
    assert writers.returncode == 0
    assert len(seen) == 10


def stored(folder: Path, model: bytes) -> Path:
    """Write a model to a file that is named by its hash."""
    path = folder / f"{hashlib.sha256(model).hexdigest()}.onnx"
    path.write_bytes(model)
    return path
