from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from fededge.errors import ExportError, LayoutError, StoreError
from fededge.export import Template, check, predict, session
from fededge.export.tracing import EXPORTERS
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec


def test_a_filled_template_answers_as_a_fresh_trace_with_the_same_weights(
    make: Callable[[int], nn.Module], spec: ModelSpec, images: Tensor
) -> None:
    other = FlatModel(make(2))
    filled = Template.trace(make(1), spec).fill(other.vector, {})
    fresh = Template.trace(other.module, spec).fill(other.vector, {})
    assert torch.equal(predict(session(filled), images), predict(session(fresh), images))
    parity = check(filled, other.module, spec, images)
    assert parity.difference < 1e-5
    assert parity.same_labels == len(images)


def test_every_tensor_of_the_layout_is_an_initialiser_under_its_name(
    make: Callable[[int], nn.Module], spec: ModelSpec
) -> None:
    """Also those that take no part in the answer; a tied one once, under its first name."""
    flat = FlatModel(make(1))
    model = onnx.load_model_from_string(Template.trace(make(2), spec).fill(flat.vector, {}))
    found = {i.name: torch.tensor(numpy_helper.to_array(i)) for i in model.graph.initializer}
    for name, tensor in flat.layout.views(flat.vector).items():
        assert torch.equal(found[name], tensor), name
    assert len(found) == len(model.graph.initializer)


def test_the_network_runs_on_the_weights_and_on_no_copy_of_them(
    make: Callable[[int], nn.Module], spec: ModelSpec
) -> None:
    """Nothing the size of a weight is left in a template: it works for every vector."""
    template = Template.trace(make(1), spec)
    graph = onnx.GraphProto.FromString(template.graph)
    sizes = [len(i.raw_data) for i in graph.initializer]
    sizes += [len(a.t.raw_data) for n in graph.node for a in n.attribute if n.op_type == "Constant"]
    assert max(sizes) <= 4 * 4


def test_a_filled_template_passes_the_full_checker(
    make: Callable[[int], nn.Module], spec: ModelSpec
) -> None:
    model = Template.trace(make(1), spec).fill(FlatModel(make(1)).vector, {"device": "a"})
    onnx.checker.check_model(model, full_check=True)


def test_protobuf_itself_writes_a_filled_template_with_the_same_content(
    network: nn.Module, spec: ModelSpec
) -> None:
    """Our own bytes read, written by the library and read again: nothing is lost or unknown."""
    model = Template.trace(network, spec).fill(FlatModel(network).vector, {"labels": '["ä"]'})
    read = onnx.load_model_from_string(model)
    again = onnx.load_model_from_string(read.SerializeToString())
    read.DiscardUnknownFields()
    assert again == read
    assert {p.key: p.value for p in read.metadata_props} == {"labels": '["ä"]'}


def test_the_same_weights_and_metadata_give_the_same_bytes(
    network: nn.Module, spec: ModelSpec
) -> None:
    template, vector = Template.trace(network, spec), FlatModel(network).vector
    assert template.fill(vector, {"a": "1"}) == template.fill(vector.clone(), {"a": "1"})


def test_filling_does_not_change_the_vector(network: nn.Module, spec: ModelSpec) -> None:
    vector = FlatModel(network).vector
    before = vector.clone()
    Template.trace(network, spec).fill(vector, {})
    assert torch.equal(vector, before)


def test_a_vector_of_another_layout_is_refused(network: nn.Module, spec: ModelSpec) -> None:
    template = Template.trace(network, spec)
    with pytest.raises(LayoutError, match="the vector must have"):
        template.fill(torch.zeros(template.layout.size + 1), {})


def test_a_model_that_no_onnx_file_can_hold_is_refused(
    network: nn.Module, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, vector = Template.trace(network, spec), FlatModel(network).vector
    size = len(template.fill(vector, {}))
    monkeypatch.setattr("fededge.export.template.LARGEST_MODEL", size)
    assert len(template.fill(vector, {})) == size
    with pytest.raises(ExportError, match=f"has {size + 15:,} bytes, .* at most 2 GiB"):
        template.fill(vector, {"device": "abc"})


FILL = """
import sys
from pathlib import Path
import torch
from fededge.export import Template
template = Template.load(Path(sys.argv[1]))
before = set(sys.modules)
template.fill(torch.zeros(template.layout.size), {"a": "b"})
assert set(sys.modules) == before, set(sys.modules) - before
assert not {"onnx", "onnxruntime", "onnxscript"} & before
"""


def test_filling_a_kept_template_imports_nothing(
    network: nn.Module, spec: ModelSpec, tmp_path: Path
) -> None:
    path = tmp_path / "net.template"
    Template.trace(network, spec).save(path)
    subprocess.run([sys.executable, "-c", FILL, str(path)], check=True)


def test_a_kept_template_is_the_one_that_was_saved(
    network: nn.Module, spec: ModelSpec, tmp_path: Path
) -> None:
    template = Template.trace(network, spec)
    template.save(tmp_path / "a.template")
    loaded = Template.load(tmp_path / "a.template")
    assert loaded == template
    assert loaded.layout.hash == template.layout.hash


def test_a_network_is_traced_once_and_again_for_other_labels(
    network: nn.Module, spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Template.cached_file(tmp_path, network, spec)
    other = msgspec.structs.replace(spec, labels=tuple("xyz"))
    assert Template.load(path).spec == spec
    assert Template.cached_file(tmp_path, network, other) == path
    assert Template.load(path).spec == other
    monkeypatch.setattr(Template, "trace", None)
    assert Template.cached_file(tmp_path, network, other) == path


def test_a_kept_template_has_no_weights(spec: ModelSpec, tmp_path: Path) -> None:
    large = nn.Sequential(nn.Flatten(), nn.Linear(192, 5000), nn.Linear(5000, 3))
    Template.trace(large, spec).save(tmp_path / "a.template")
    assert (tmp_path / "a.template").stat().st_size < 10_000


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "foreign", "longer"])
def test_a_damaged_template_is_noticed(
    damage: str, network: nn.Module, spec: ModelSpec, tmp_path: Path
) -> None:
    path = tmp_path / "a.template"
    Template.trace(network, spec).save(path)
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        {
            "empty": b"",
            "short": data[:-1],
            "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "foreign": b"PK\x03\x04" + data[4:],
            "longer": data + b"\0",
        }[damage]
    )
    with pytest.raises(StoreError, match=r"a\.template: not a template, or a damaged one"):
        Template.load(path)


def test_a_missing_template_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"a\.template: cannot be read \(No such file"):
        Template.load(tmp_path / "a.template")


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the networks that were really traced."""
    names: list[str] = []
    trace = Template.trace.__func__  # type: ignore[attr-defined]

    def counted(cls: type[Template], module: nn.Module, spec: ModelSpec) -> Template:
        names.append(spec.name)
        result: Template = trace(cls, module, spec, EXPORTERS)
        return result

    monkeypatch.setattr(Template, "trace", classmethod(counted))
    return names


def test_a_network_is_traced_once_per_layout_across_restarts(
    traces: list[str], make: Callable[[int], nn.Module], spec: ModelSpec, tmp_path: Path
) -> None:
    first = Template.cached(tmp_path, make(1), spec)
    assert Template.cached(tmp_path, make(2), spec) == first
    assert traces == ["net"]
    assert [path.name for path in tmp_path.iterdir()] == [f"{first.layout.hash}.template"]


def test_a_damaged_template_is_traced_anew_with_one_warning(
    traces: list[str],
    network: nn.Module,
    spec: ModelSpec,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    template = Template.cached(tmp_path, network, spec)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert Template.cached(tmp_path, network, spec) == template
    assert Template.load(path) == template
    assert len(traces) == 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "damaged" in record.getMessage()


def test_a_template_of_other_code_with_the_same_layout_is_traced_anew(
    traces: list[str], spec: ModelSpec, tmp_path: Path, images: Tensor
) -> None:
    """The names and shapes are equal, the activation is not."""
    sigmoid, tanh = (
        nn.Sequential(nn.Flatten(), nn.Linear(192, 8), act, nn.Linear(8, 3))
        for act in (nn.Sigmoid(), nn.Tanh())
    )
    old = Template.cached(tmp_path, sigmoid, spec)
    new = Template.cached(tmp_path, tanh, spec)
    assert old.layout == new.layout
    assert len(traces) == 2
    check(new.fill(FlatModel(tanh).vector, {}), tanh, spec, images)


def test_a_template_for_other_pixels_is_traced_anew(
    traces: list[str], network: nn.Module, spec: ModelSpec, tmp_path: Path
) -> None:
    other = ModelSpec(spec.name, spec.labels, spec.shape, (0.1, 0.1, 0.1), spec.std)
    Template.cached(tmp_path, network, spec)
    assert Template.cached(tmp_path, network, other).spec == other
    assert len(traces) == 2


def test_a_template_that_cannot_be_saved_is_still_used(
    network: nn.Module, spec: ModelSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk: the next start traces again, and nothing ends."""
    (tmp_path / "templates").write_text("a file where the folder belongs")
    template = Template.cached(tmp_path / "templates", network, spec)
    assert template == Template.trace(network, spec)
    (record,) = caplog.records
    assert "the traced network is not saved: " in record.getMessage()
