"""Models whose graph refers to other files, which ONNX Runtime would read unverified."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, external_data_helper, helper

from fededge import Predictor
from fededge.cli import main
from fededge.errors import ExportError, StoreError
from fededge.export import session
from fededge.predictor.external_data import INSIDE, names_other_files

ELSEWHERE = "weights in another file"


def with_external_weights(model: bytes, folder: Path) -> bytes:
    """The same model, its weights in a file of this folder."""
    proto = onnx.load_model_from_string(model)
    external_data_helper.convert_model_to_external_data(
        proto, location="weights.bin", size_threshold=1000
    )
    external_data_helper.write_external_data_tensors(proto, str(folder))
    assert (folder / "weights.bin").stat().st_size
    return bytes(proto.SerializeToString())


@pytest.fixture
def elsewhere(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device's model with its weights in the working folder; the manifest has its hash."""
    folder, working = models / "1", tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    data = with_external_weights((folder / "model.onnx").read_bytes(), working)
    (folder / "model.onnx").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return models


def test_onnx_runtime_itself_would_read_the_working_folder(elsewhere: Path) -> None:
    onnxruntime.InferenceSession((elsewhere / "1" / "model.onnx").read_bytes())


def test_no_app_gets_such_a_model(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreError, match=r"model\.onnx: it has weights in another file"):
        Predictor(elsewhere)
    assert main(["predict", str(elsewhere), "x.png"]) == 2
    assert ELSEWHERE in capsys.readouterr().err


def test_a_running_app_goes_on_with_the_model_before(
    models: Path, colour: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor(models)
    before = predictor.version
    colour.export(models, seed=2, round_=35)
    path = models / "2" / "model.onnx"
    monkeypatch.chdir(tmp_path)
    path.write_bytes(with_external_weights(path.read_bytes(), tmp_path))
    manifest = json.loads((models / "2" / "manifest.json").read_bytes())
    manifest["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (models / "2" / "manifest.json").write_text(json.dumps(manifest))
    assert not predictor.refresh()
    assert predictor.version == before


def test_no_export_is_compared_with_such_a_model(elsewhere: Path) -> None:
    path = elsewhere / "1" / "model.onnx"
    for model in (path, path.read_bytes()):
        with pytest.raises(ExportError, match=ELSEWHERE):
            session(model)


def external() -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    return tensor


def graph(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "g", [], [])


def inside(**values: Any) -> onnx.ModelProto:
    return helper.make_model(graph(helper.make_node("Constant", [], ["a"], **values)))


def sparse() -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=external(), dims=[1])


def in_a_function() -> onnx.ModelProto:
    node = helper.make_node("Constant", [], ["a"], value=external())
    made = helper.make_function("d", "f", [], ["a"], [node], [helper.make_opsetid("", 20)])
    return helper.make_model(graph(), functions=[made])


def in_an_initializer(**fields: Any) -> onnx.ModelProto:
    tensor = TensorProto(name="w", **fields)
    return helper.make_model(helper.make_graph([], "g", [], [], initializer=[tensor]))


def in_a_sparse_initializer() -> onnx.ModelProto:
    return helper.make_model(helper.make_graph([], "g", [], [], sparse_initializer=[sparse()]))


def in_the_training() -> onnx.ModelProto:
    model = helper.make_model(graph())
    model.training_info.add().algorithm.initializer.append(external())
    return model


HIDING: dict[str, Callable[[], onnx.ModelProto]] = {
    "initializer": lambda: in_an_initializer(data_location=TensorProto.EXTERNAL),
    "only a place": lambda: in_an_initializer(
        external_data=[onnx.StringStringEntryProto(key="location", value="x")]
    ),
    "sparse initializer": in_a_sparse_initializer,
    "attribute": lambda: inside(value=external()),
    "sparse attribute": lambda: inside(sparse_value=sparse()),
    "branch": lambda: inside(
        then_branch=graph(helper.make_node("Constant", [], ["b"], value=external()))
    ),
    "list of tensors": lambda: inside(many=[external(), external()]),
    "function": in_a_function,
    "training": in_the_training,
}


@pytest.mark.parametrize("where", HIDING)
def test_weights_in_another_file_are_found_wherever_they_hide(where: str) -> None:
    assert ELSEWHERE in names_other_files(HIDING[where]().SerializeToString())


def test_a_node_that_reads_a_file_is_refused() -> None:
    context = helper.make_node("EPContext", [], ["a"], domain="com.microsoft", embed_mode=0)
    model = helper.make_model(graph(context)).SerializeToString()
    assert names_other_files(model) == "it has a node that reads another file"


def test_a_whole_model_passes(models: Path) -> None:
    assert names_other_files((models / "1" / "model.onnx").read_bytes()) == ""


def test_the_table_has_every_way_to_a_tensor_that_onnx_knows() -> None:
    """The onnx package's own description of the format, walked from the model down."""
    kinds = {name: getattr(onnx, name).DESCRIPTOR for name in INSIDE}
    leads = {"TensorProto"}
    everything, waiting = {}, [onnx.ModelProto.DESCRIPTOR]
    while waiting:
        found = waiting.pop()
        if found.name not in everything:
            everything[found.name] = found
            waiting += [f.message_type for f in found.fields if f.message_type is not None]
    while more := {
        name
        for name, found in everything.items()
        if name not in leads
        and any(f.message_type is not None and f.message_type.name in leads for f in found.fields)
    }:
        leads |= more
    assert INSIDE.keys() == leads
    for name, found in kinds.items():
        inner = {f.number: f.message_type.name for f in found.fields if f.message_type is not None}
        expected = {number: kind for number, kind in inner.items() if kind in leads}
        assert INSIDE[name] == expected


@given(st.binary(max_size=400))
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    assert isinstance(names_other_files(data), str)


@pytest.mark.parametrize(
    "data",
    [
        b"\x3b\x3c",  # a group
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a length beyond the end
        b"\x3a\x05abc",
        b"\x80" * 20,
        b"\x00\x00",
        b"\x08\x01\x08\x01ORTM",
        b"\x1c\x00\x00\x00ORTM" + bytes(100),
    ],
)
def test_a_file_that_is_not_onnx_is_refused(data: bytes) -> None:
    assert "it is not an ONNX file" in names_other_files(data)


def test_a_message_that_comes_in_parts_is_looked_at_in_all_of_them() -> None:
    """Protobuf merges repeated parts of a message, so the second part of the graph counts too."""
    whole = HIDING["initializer"]().SerializeToString()
    start = helper.make_model(graph()).SerializeToString()
    assert ELSEWHERE in names_other_files(start + whole)
