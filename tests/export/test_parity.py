from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fededge.errors import DataError, ExportError
from fededge.export import Template, check, predict, session
from fededge.export.parity import Array, _run
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec


def test_the_probabilities_are_those_of_the_normalised_image(
    flat: FlatModel, template: Template, spec: ModelSpec, images: Tensor
) -> None:
    """Against the formula, written out: softmax(net((x/255 - mean)/std))."""
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (spec.mean, spec.std))
    with torch.no_grad():
        expected = flat.module.eval()((images / 255 - mean) / std).softmax(1)
    got = predict(session(template.fill(flat.vector, {})), images)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


def test_a_good_export_passes_and_says_by_how_much(
    flat: FlatModel, template: Template, spec: ModelSpec, images: Tensor
) -> None:
    model = template.fill(flat.vector, {})
    parity = check(model, flat.module, spec, images)
    assert parity.samples == parity.same_labels == 100
    assert 0 <= parity.difference < 1e-5
    assert parity.sha256 == hashlib.sha256(model).hexdigest()


def test_a_file_is_compared_like_its_bytes(
    flat: FlatModel, template: Template, spec: ModelSpec, images: Tensor, tmp_path: Path
) -> None:
    model = template.fill(flat.vector, {})
    (tmp_path / "m.onnx").write_bytes(model)
    assert check(tmp_path / "m.onnx", flat.module, spec, images) == check(
        model, flat.module, spec, images
    )


def test_a_tampered_vector_is_refused(
    flat: FlatModel, template: Template, spec: ModelSpec, images: Tensor
) -> None:
    vector = flat.vector.clone()
    vector[flat.layout.entries[0].span.start] += 1.0
    with pytest.raises(ExportError, match=r"differs from torch by .* \(at most 1e-04"):
        check(template.fill(vector, {}), flat.module, spec, images)


def test_the_bound_decides(
    flat: FlatModel, template: Template, spec: ModelSpec, images: Tensor
) -> None:
    vector = flat.vector.clone()
    vector[flat.layout.entries[-3].span.start] += 0.01
    model = template.fill(vector, {})
    difference = check(model, flat.module, spec, images, atol=1.0).difference
    assert check(model, flat.module, spec, images, atol=difference).difference == difference
    with pytest.raises(ExportError, match="differs from torch"):
        check(model, flat.module, spec, images, atol=0.99 * difference)


@pytest.mark.parametrize("where", ["both", "onnx"])
def test_a_model_that_has_diverged_is_refused(
    where: str, flat: FlatModel, template: Template, spec: ModelSpec, images: Tensor
) -> None:
    vector = flat.vector.clone()
    vector[0] = torch.nan
    if where == "both":
        flat.load(vector)
    with pytest.raises(ExportError, match="not finite" if where == "both" else "by nan"):
        check(template.fill(vector, {}), flat.module, spec, images)


def test_a_module_in_training_is_compared_in_evaluation_mode_and_left_in_training(
    flat: FlatModel, template: Template, spec: ModelSpec, images: Tensor
) -> None:
    flat.module.train()
    before = flat.vector.clone()
    check(template.fill(flat.vector, {}), flat.module, spec, images)
    assert all(m.training for m in flat.module.modules())
    assert torch.equal(flat.vector, before)
    assert flat.bound


def test_accuracy_is_that_of_the_exported_file(
    flat: FlatModel, template: Template, spec: ModelSpec, images: Tensor
) -> None:
    parity = check(template.fill(flat.vector, {}), flat.module, spec, images)
    wrong = (parity.predicted + 1) % 3
    assert parity.accuracy(parity.predicted) == 1.0
    assert parity.accuracy(np.concatenate([parity.predicted[:25], wrong[25:]])) == 0.25
    with pytest.raises(DataError, match="100 samples were compared, but 3 labels"):
        parity.accuracy(torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), "there are none"),
        (torch.zeros(4, 3, 8, 8), r"got torch.float32 \(4, 3, 8, 8\)"),
        (torch.zeros(4, 1, 8, 8, dtype=torch.uint8), r"of shape \(3, 8, 8\), got"),
    ],
    ids=["none", "float", "channels"],
)
def test_images_that_cannot_be_compared_are_refused(
    images: Tensor, words: str, flat: FlatModel, template: Template, spec: ModelSpec
) -> None:
    with pytest.raises(ExportError, match=words):
        check(template.fill(flat.vector, {}), flat.module, spec, images)


def test_a_file_that_is_no_model_is_refused_in_one_sentence_and_in_silence(
    flat: FlatModel,
    spec: ModelSpec,
    images: Tensor,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"garbage")
    for model in (tmp_path / "m.onnx", tmp_path / "absent.onnx", b"garbage"):
        with pytest.raises(ExportError, match=r"cannot|not an ONNX file") as caught:
            check(model, flat.module, spec, images)
        assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_one_image_and_many_are_both_compared(
    flat: FlatModel,
    template: Template,
    spec: ModelSpec,
    images: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def spy(loaded: Any, batch: Array) -> Array:
        sizes.append(len(batch))
        return _run(loaded, batch)

    monkeypatch.setattr("fededge.export.parity._run", spy)
    check(template.fill(flat.vector, {}), flat.module, spec, images)
    assert sizes == [1, 64, 35]


def test_a_session_uses_one_thread_unless_told(template: Template, flat: FlatModel) -> None:
    model = template.fill(flat.vector, {})
    assert session(model).get_session_options().intra_op_num_threads == 1
    assert session(model, threads=2).get_session_options().intra_op_num_threads == 2


def test_without_onnx_runtime_there_is_a_sentence_and_the_agent_trains_on(
    network: nn.Module, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent catches exactly this error, and goes on without exports."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ExportError, match=r"needs ONNX Runtime, .*pip install onnxruntime"):
        Template.trace(network, spec)
