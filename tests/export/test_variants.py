"""Smaller files of the same model: what they are made of, what they cost, and which one is used."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from fededge.credentials.signing_keys import make_keys, read_signing_key
from fededge.data import embedded
from fededge.errors import ExportError
from fededge.export import (
    VARIANTS,
    Candidate,
    ModelRegistry,
    Origin,
    Samples,
    Template,
    Variant,
    make_candidate,
    predict_all,
)
from fededge.export.quantisation import to_int8
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess, build_for
from fededge.models.evaluation import accuracy
from fededge.models.precision import channels_last
from fededge.predictor.signature import signed_bytes


@pytest.fixture(scope="module")
def trained() -> tuple[FlatModel, ModelSpec, Samples]:
    """LeNet after a pass over the embedded images, those images, and others to measure on."""
    data, test = embedded()
    spec = ModelSpec("lenet", data.labels, (1, 28, 28), data.mean, data.std)
    net, prepare = build_for(spec, seed=1), Preprocess(spec)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for part in torch.arange(len(data.y)).split(32):
        loss = nn.functional.cross_entropy(net(channels_last(prepare(data.x[part]))), data.y[part])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return FlatModel(net), spec, Samples(data.x[:256], test.x, test.y)


@pytest.fixture(scope="module")
def candidate(trained: tuple[FlatModel, ModelSpec, Samples]) -> Candidate:
    flat, spec, samples = trained
    template = Template.trace(flat.module, spec)
    images, labels = torch.as_tensor(samples.held_x), torch.as_tensor(samples.held_y)
    score = accuracy(flat.module, Preprocess(spec), images, labels)
    origin = msgspec.convert(
        {"federation": "f", "device": "d", "method": "m", "version": "v", "round": 0}
        | {"accuracy": score, "created": "2025-03-01T12:30:00Z"},
        Origin,
    )
    weights = [entry.name for entry in template.layout.entries]
    made = make_candidate(flat, template, origin, images[:64])
    return made.with_variants(VARIANTS, weights, samples)


def test_every_variant_is_described_as_it_is(
    candidate: Candidate, trained: tuple[FlatModel, ModelSpec, Samples]
) -> None:
    """Hash, size, and an accuracy that is counted here again."""
    _, _, samples = trained
    assert list(candidate.manifest.variants) == ["fp16", "int8"]
    images, labels = torch.as_tensor(samples.held_x), torch.as_tensor(samples.held_y)
    reference = predict_all(candidate.files["model.onnx"], images)
    for name, variant in candidate.manifest.variants.items():
        data = candidate.files[variant.file]
        assert variant.file == f"model.{name}.onnx"
        assert (variant.sha256, variant.size) == (hashlib.sha256(data).hexdigest(), len(data))
        answers = predict_all(data, images)
        right = int((answers.argmax(1) == labels).sum())
        assert variant.accuracy == pytest.approx(right / len(labels), abs=1e-12)
        assert variant.difference == pytest.approx((answers - reference).abs().max().item())


def test_the_sizes_and_the_accuracies_are_those_that_are_promised(candidate: Candidate) -> None:
    manifest = candidate.manifest
    assert manifest.accuracy is not None
    assert manifest.accuracy > 0.6  # it has learnt something that can be lost
    for name, most, drop in (("int8", 0.30, 0.015), ("fp16", 0.52, 0.002)):
        variant = manifest.variants[name]
        assert variant.accuracy is not None
        assert variant.size <= most * manifest.size, name
        assert manifest.accuracy - variant.accuracy <= drop, name


def test_int8_is_static_with_one_scale_a_channel(candidate: Candidate) -> None:
    """Every convolution and matrix: int8 weights, one scale for each row, bias in int32."""
    model = onnx.load_model_from_string(candidate.files["model.int8.onnx"])
    tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    layers = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm")]
    assert len(layers) == 5
    for layer in layers:
        pixels, weight, bias = (producers[name] for name in layer.input)
        assert [n.op_type for n in (pixels, weight, bias)] == ["DequantizeLinear"] * 3
        assert tensors[weight.input[0]].dtype == np.int8
        assert tensors[bias.input[0]].dtype == np.int32
        rows = tensors[weight.input[0]].shape[0]
        assert tensors[weight.input[1]].shape == (rows,)
        assert not tensors[weight.input[2]].any()  # symmetric
    assert not any(node.op_type.startswith("Dynamic") for node in model.graph.node)
    assert {o.domain: o.version for o in model.opset_import} == {"": 17}


def test_variants_have_the_inputs_outputs_and_metadata_of_the_model(candidate: Candidate) -> None:
    plain = onnx.load_model_from_string(candidate.files["model.onnx"])
    for variant in candidate.manifest.variants.values():
        other = onnx.load_model_from_string(candidate.files[variant.file])
        onnx.checker.check_model(other, full_check=True)
        assert list(other.graph.input) == list(plain.graph.input)
        assert list(other.graph.output) == list(plain.graph.output)
        inside, outside = ({p.key: p.value for p in m.metadata_props} for m in (other, plain))
        assert inside == {**outside, "accuracy": str(variant.accuracy)}  # its own
        assert other.ir_version == plain.ir_version


def test_calibration_sees_training_samples_only(
    candidate: Candidate, trained: tuple[FlatModel, ModelSpec, Samples]
) -> None:
    """Other held-out samples: the same graph. Other training samples: other scales."""
    _, _, samples = trained
    same = replace(samples, held_x=255 - samples.held_x)
    other = replace(samples, training=samples.training // 4)
    graphs = [
        onnx.load_model_from_string(made.files["model.int8.onnx"]).graph
        for made in (candidate, *(candidate.with_variants(["int8"], [], s) for s in (same, other)))
    ]
    assert graphs[0] == graphs[1]
    assert graphs[0] != graphs[2]


def test_quantising_takes_no_log_line_of_the_rest_of_the_process(
    candidate: Candidate,
    trained: tuple[FlatModel, ModelSpec, Samples],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The agent goes on meanwhile, in another thread; ONNX Runtime's own advice is left out."""
    _, _, samples = trained
    bare = replace(candidate, manifest=msgspec.structs.replace(candidate.manifest, variants={}))
    done = threading.Event()
    said: list[str] = []

    def agent() -> None:
        while not done.wait(0.005):
            said.append(f"line {len(said)}")
            logging.getLogger("agent").info(said[-1])

    with caplog.at_level(logging.INFO):
        speaker = threading.Thread(target=agent)
        speaker.start()
        try:
            bare.with_variants(["int8"], [], samples)
        finally:
            done.set()
            speaker.join()
        logging.getLogger().warning("of our own, afterwards")
    assert len(said) > 5
    assert [record.message for record in caplog.records if record.name == "agent"] == said
    assert [r.message for r in caplog.records if r.name == "root"] == ["of our own, afterwards"]


def preferring(
    candidate: Candidate, accuracy: float | None, max_drop: float, name: str = "int8"
) -> str:
    variant = Variant(file="x", sha256="0" * 64, size=1, accuracy=accuracy, difference=0.0)
    manifest = msgspec.structs.replace(candidate.manifest, accuracy=0.9, variants={"int8": variant})
    return replace(candidate, manifest=manifest).preferring(name, max_drop).manifest.use


def test_the_preferred_variant_is_used_unless_it_loses_too_much(candidate: Candidate) -> None:
    assert preferring(candidate, 0.895, 0.5) == "int8"
    assert preferring(candidate, 0.91, 0.0) == "int8"
    assert preferring(candidate, 0.8949, 0.5) == "fp32"
    assert preferring(candidate, None, 0.5) == "fp32"  # nothing was measured
    assert preferring(candidate, 0.9, 0.5, "fp16") == "fp32"  # it could not be made
    assert preferring(candidate, 0.9, 0.5, "fp32") == "fp32"


def test_a_variant_that_cannot_be_made_is_left_out_with_a_sentence(
    candidate: Candidate,
    trained: tuple[FlatModel, ModelSpec, Samples],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Weights beyond what float16 holds: the float32 model is published all the same."""
    flat, spec, samples = trained
    template = Template.trace(flat.module, spec)
    big = flat.clone()
    big.vector[0] = 1e6
    origin = msgspec.convert(
        {
            k: v
            for k, v in msgspec.to_builtins(candidate.manifest).items()
            if k in Origin.__struct_fields__
        },
        Origin,
    )
    made = make_candidate(big, template, origin, torch.as_tensor(samples.held_x[:8]))
    weights = [entry.name for entry in template.layout.entries]
    with caplog.at_level(logging.WARNING):
        assert made.with_variants(["fp16"], weights, samples).manifest.variants == {}
    assert "'body.0.weight' has numbers that float16 cannot hold" in caplog.text


def test_without_a_temporary_folder_there_is_no_int8_variant(
    candidate: Candidate,
    trained: tuple[FlatModel, ModelSpec, Samples],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full or missing folder for temporary files costs the variant, not the agent."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(ExportError, match=r"cannot be quantised \(.*No such file.*/nowhere"):
        to_int8(candidate.files["model.onnx"], trained[2].training)


def test_without_held_out_data_there_is_no_accuracy_and_float32_is_used(
    candidate: Candidate, trained: tuple[FlatModel, ModelSpec, Samples]
) -> None:
    _, _, samples = trained
    nothing = replace(samples, held_x=samples.held_x[:0], held_y=samples.held_y[:0])
    made = candidate.with_variants(["int8"], [], nothing)
    assert made.manifest.variants["int8"].accuracy is None
    assert made.preferring("int8", 100.0).manifest.use == "fp32"


def test_a_signature_covers_the_manifest_and_so_every_file(
    candidate: Candidate, tmp_path: Path
) -> None:
    make_keys(tmp_path / "k", tmp_path / "p")
    key = read_signing_key(tmp_path / "k")
    ModelRegistry(tmp_path / "models").publish(candidate.signed(key))
    manifest = json.loads((tmp_path / "models/current/manifest.json").read_bytes())
    signature = bytes.fromhex(manifest["signature"])
    key.public_key().verify(signature, signed_bytes(manifest))
    assert b'"signature"' not in signed_bytes(manifest)
    assert manifest["variants"]["int8"]["sha256"].encode() in signed_bytes(manifest)


EXPORT = """
import sys
from pathlib import Path
import torch
before = set(sys.modules)  # torch itself imports some of torch.export
import msgspec
from fededge.export import Candidate, ModelRegistry, Origin, Samples, Template, make_candidate
from fededge.flat import FlatModel
from fededge.models import build_for
from fededge.model_spec import ModelSpec
from fededge_agent.trainer.handover import Handover
spec, origin = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[ModelSpec, Origin])
flat = FlatModel(build_for(spec, seed=3))
images = torch.randint(0, 256, (16, *spec.shape), dtype=torch.uint8)
template = Template.cached(Path(sys.argv[1]), flat.module, spec)
candidate = make_candidate(flat, template, origin, images)
weights = [entry.name for entry in template.layout.entries]
samples = Samples(images, images, torch.zeros(16))
candidate = candidate.with_variants(("fp16", "int8"), weights, samples)
assert len(candidate.files) == 3
ModelRegistry(Path(sys.argv[2])).publish(candidate)
HEAVY = ("onnxscript", "sympy", "torch._dynamo", "torch._inductor", "torch._export",
         "torch.onnx._internal", "torch.fx.experimental.symbolic_shapes")
print([name for name in sys.modules if name.startswith(HEAVY) and name not in before])
"""


def test_an_agent_with_its_template_imports_nothing_of_torchs_compiler(
    trained: tuple[FlatModel, ModelSpec, Samples], candidate: Candidate, tmp_path: Path
) -> None:
    """In a new process, with all variants: no exporter, no compiler, no symbolic mathematics."""
    flat, spec, _ = trained
    Template.cached(tmp_path / "templates", flat.module, spec)
    fields = msgspec.to_builtins(candidate.manifest)
    origin = {key: fields[key] for key in Origin.__struct_fields__}
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, tmp_path / "templates", tmp_path / "models"],
        input=msgspec.json.encode((spec, origin)),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, b"[]"), done.stderr.decode()
