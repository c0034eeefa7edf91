"""The choice of a model's file, and signatures by a trusted key."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fededge import Predictor
from fededge.credentials.signing_keys import make_keys, read_signing_key
from fededge.errors import ConfigError, StoreError
from fededge.export import Candidate, ModelRegistry, Samples, make_candidate
from fededge.flat import FlatModel
from fededge.predictor.manifest import ModelInput, chosen, read
from tests.origin import ORIGIN
from tests.predictor.conftest import LABELS, Maker, network


@pytest.fixture
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (32, 3, 8, 10), generator=generator, dtype=torch.uint8)


@pytest.fixture
def candidate(colour: Maker, images: torch.Tensor) -> Candidate:
    """A model of seed 1 with both variants; its held-out labels are its own answers."""
    flat = FlatModel(network(colour.spec.shape, 1))
    truth = torch.tensor([int(colour.expected(1, i.numpy()).argmax()) for i in images])
    samples = Samples(images, images, truth)
    plain = make_candidate(flat, colour.template, ORIGIN, images)
    weights = [entry.name for entry in colour.template.layout.entries]
    return plain.with_variants(["fp16", "int8"], weights, samples)


def file_of(predictor: Predictor) -> str:
    return predictor.version.rpartition("-")[2]


def test_the_agents_choice_is_taken_and_an_app_may_take_another(
    candidate: Candidate, colour: Maker, images: torch.Tensor, tmp_path: Path
) -> None:
    models = ModelRegistry(tmp_path / "models")
    manifest = models.publish(candidate.preferring("int8", 100))
    assert (manifest.use, set(manifest.variants)) == ("int8", {"fp16", "int8"})
    chosen, plain = Predictor(tmp_path), Predictor(tmp_path, variant="fp32")
    assert (chosen.about.variant, plain.about.variant) == ("int8", "fp32")
    assert file_of(chosen) == manifest.variants["int8"].sha256[:16]
    assert file_of(plain) == manifest.sha256[:16]
    expected = np.array([colour.expected(1, image.numpy()) for image in images])
    differences = {}
    for name in ("fp32", "fp16", "int8"):
        results = Predictor(tmp_path, variant=name).predict(images.numpy())
        differences[name] = np.abs([r.probabilities for r in results] - expected).max()
    assert differences["fp32"] < 1e-6 < differences["fp16"] < 0.01
    assert differences["fp16"] < differences["int8"] < 0.1


def test_a_variant_that_was_not_made_is_named(models: Path) -> None:
    with pytest.raises(ConfigError, match=r"the model has no variant 'int8' \(known: fp32\)"):
        Predictor(models, variant="int8")


@pytest.mark.parametrize("spoil", [lambda p: os.truncate(p, 99), Path.unlink])
def test_a_spoilt_variant_gives_way_to_float32(
    candidate: Candidate,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
) -> None:
    """The fallback is logged; an app that requests the variant by name gets an error instead."""
    ModelRegistry(tmp_path / "models").publish(candidate.preferring("int8", 100))
    spoil(tmp_path / "models" / "1" / "model.int8.onnx")
    predictor = Predictor(tmp_path)
    assert (predictor.about.variant, file_of(predictor)) == ("fp32", candidate.manifest.sha256[:16])
    assert predictor.predict(np.zeros((8, 10), np.uint8)).label in LABELS
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("int8 cannot be used, falling back to fp32: ")
    assert "model.int8.onnx: " in line
    with pytest.raises(StoreError, match=r"model\.int8\.onnx: (damaged|cannot be read)"):
        Predictor(tmp_path, variant="int8")


def test_only_models_that_the_trusted_key_signed_are_taken(
    candidate: Candidate, models: Path, tmp_path: Path
) -> None:
    """Unsigned models, another key's, and a changed manifest are refused."""
    for name in ("ours", "theirs"):
        make_keys(tmp_path / f"{name}.key", tmp_path / f"{name}.pub")
    signed = candidate.signed(read_signing_key(tmp_path / "ours.key"))
    ModelRegistry(tmp_path / "device" / "models").publish(signed)
    predictor = Predictor(tmp_path / "device", trusted_key=tmp_path / "ours.pub")
    assert predictor.predict(np.zeros((8, 10), np.uint8)).label in LABELS
    for folder, key in ((models, "ours"), (tmp_path / "device", "theirs")):
        with pytest.raises(StoreError, match="not signed by the key that this app trusts"):
            Predictor(folder, trusted_key=tmp_path / f"{key}.pub")
    path = tmp_path / "device" / "models" / "1" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"labels": ["a", "b", "c"]}))
    assert not predictor.refresh()
    assert predictor.about.labels == LABELS
    with pytest.raises(ConfigError, match="holds no public Ed25519 key"):
        Predictor(models, trusted_key=tmp_path / "ours.key")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)
FITTING = {
    "labels": ["a", "b"],
    "round": 1,
    "sha256": "0" * 64,
    "input": {"name": "image", "shape": [3, 8, 10], "dtype": "uint8", "range": [0, 255]},
    "variants": {"int8": {"file": "model.int8.onnx", "sha256": "1" * 64}},
    "use": "int8",
}
PLACES = [(key,) for key in FITTING] + [
    ("input", "name"), ("input", "shape"), ("input", "dtype"), ("input", "range"),
    ("variants", "int8"), ("variants", "int8", "file"), ("variants", "int8", "sha256"),
]  # fmt: skip


@given(st.sampled_from(PLACES), JSON)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_manifest_is_read_or_refused_whatever_stands_in_it(
    tmp_path: Path, place: tuple[str, ...], value: object
) -> None:
    """A manifest with one value replaced is refused or usable."""
    manifest = json.loads(json.dumps(FITTING))
    inner = manifest
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest))
    try:
        found = read(path)
    except StoreError:
        return
    assert "/" not in chosen(found, None).name
    assert ModelInput.of(found).kind in ("image", "text")
