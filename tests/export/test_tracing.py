from __future__ import annotations

import logging
from collections.abc import Callable

import onnx
import pytest
import torch
from torch import Tensor, nn

from fededge.errors import ExportError
from fededge.export import Template
from fededge.export.tracing import Exporter, dynamo, torchscript, trace_without_weights
from fededge.model_spec import ModelSpec

# Torch's newer exporter: before 2.6 it fails on a batch of any size, and until it became the
# default in 2.9 it works with some releases of onnxscript only. The older one serves there.
RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
since_2_9 = pytest.mark.skipif(RELEASE < (2, 9), reason="depends on the onnxscript release")
every_exporter = pytest.mark.parametrize(
    "exporter",
    [torchscript, pytest.param(dynamo, marks=[pytest.mark.slow, since_2_9])],
)


@every_exporter
def test_each_exporter_gives_a_graph_that_agrees_with_torch(
    exporter: Exporter, make: Callable[[int], nn.Module], spec: ModelSpec
) -> None:
    """`trace` itself compares the two on random images; here that no other exporter stepped in."""
    assert Template.trace(make(1), spec, exporters=[exporter]).layout.size


@every_exporter
def test_the_graph_takes_pixels_in_any_number_and_gives_probabilities(
    exporter: Exporter, network: nn.Module, spec: ModelSpec
) -> None:
    model = trace_without_weights(network, spec, exporter)
    (image,), (output,) = model.graph.input, model.graph.output
    assert (image.name, output.name) == ("image", "probabilities")
    assert image.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert output.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert dims(image) == ["batch", 3, 8, 8]
    assert dims(output) == ["batch", 3]
    opset = 17 if exporter is torchscript else 18
    assert [(o.domain, o.version) for o in model.opset_import] == [("", opset)]
    assert model.ir_version == 8


@every_exporter
def test_the_graph_tells_nothing_about_the_machine_it_was_traced_on(
    exporter: Exporter, network: nn.Module, spec: ModelSpec
) -> None:
    data = trace_without_weights(network, spec, exporter).SerializeToString()
    assert b".py" not in data
    assert b"site-packages" not in data


def test_dropout_is_off(spec: ModelSpec) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3)).train()
    nodes = trace_without_weights(network, spec, torchscript).graph.node
    assert {node.op_type for node in nodes}.isdisjoint({"Dropout", "RandomUniformLike"})


@every_exporter
def test_warnings_of_the_exporters_are_suppressed(
    exporter: Exporter,
    network: nn.Module,
    spec: ModelSpec,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        Template.trace(network, spec, exporters=[exporter])
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_the_levels_of_other_loggers_are_unchanged(network: nn.Module, spec: ModelSpec) -> None:
    before = logging.getLogger("torch").level
    trace_without_weights(network, spec, torchscript)
    assert logging.getLogger("torch").level == before


def test_the_traced_module_is_neither_changed_nor_moved(
    spec: ModelSpec, network: nn.Module
) -> None:
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    identity = {name: id(parameter) for name, parameter in network.named_parameters()}
    Template.trace(network, spec)
    assert all(m.training for m in network.modules())
    assert {name: id(p) for name, p in network.named_parameters()} == identity
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_next_exporter_is_tried_when_one_fails(network: nn.Module, spec: ModelSpec) -> None:
    asked = []

    def refusing(*_: object) -> onnx.ModelProto:
        asked.append("refusing")
        raise RuntimeError("no such operator")

    template = Template.trace(network, spec, exporters=[refusing, torchscript])
    assert asked == ["refusing"]
    assert template.layout.size


def test_the_error_names_every_exporter_that_failed(network: nn.Module, spec: ModelSpec) -> None:
    def first(*_: object) -> onnx.ModelProto:
        raise RuntimeError("no such operator\nand more")

    def second(*_: object) -> onnx.ModelProto:
        raise RuntimeError("no such package")

    with pytest.raises(ExportError) as caught:
        Template.trace(network, spec, exporters=[first, second])
    assert str(caught.value) == (
        "'net' cannot be traced to ONNX (no such operator); "
        "'net' cannot be traced to ONNX (no such package)"
    )


def test_an_exporter_that_loses_the_batch_is_refused(network: nn.Module, spec: ModelSpec) -> None:
    """The graph of two images and no other number is what a wrong trace looks like."""

    def fixed(*arguments: object) -> onnx.ModelProto:
        model = torchscript(*arguments)  # type: ignore[arg-type]
        reshape = next(node for node in model.graph.node if node.op_type == "Flatten")
        reshape.op_type = "Reshape"
        del reshape.attribute[:]
        reshape.input.append("two")
        model.graph.initializer.append(
            onnx.helper.make_tensor("two", onnx.TensorProto.INT64, [2], [2, 4])
        )
        return model

    with pytest.raises(ExportError, match="ONNX Runtime cannot run the model on inputs"):
        Template.trace(network, spec, exporters=[fixed])


class Hidden(nn.Module):
    """Reads a tensor past its attributes, where no one can replace it."""

    mask: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight: Tensor = nn.Parameter(torch.rand(192, 3))
        self.register_buffer("mask", torch.rand(192))
        self.shortcut = [getattr(self, kind)]
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        mask, weight = self.mask, self.weight
        if self.kind == "mask":
            (mask,) = self.shortcut
        else:
            (weight,) = self.shortcut
        return (x.flatten(1) * mask) @ weight


@pytest.mark.parametrize("kind", ["weight", "mask"])
@every_exporter
def test_a_tensor_that_would_stay_a_constant_is_refused(
    kind: str, exporter: Exporter, spec: ModelSpec
) -> None:
    with pytest.raises(ExportError, match=r"cannot be traced to ONNX|differs from torch by nan"):
        Template.trace(Hidden(kind), spec, exporters=[exporter])


class Relu(nn.Module):
    """A tensor is called as the exporters call what comes out of an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.Parameter(torch.rand(192, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).relu() @ self.relu


def test_a_tensor_may_have_the_name_of_an_operator(spec: ModelSpec) -> None:
    assert [e.name for e in Template.trace(Relu(), spec).layout.entries] == ["relu"]


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Parameter(torch.ones(192, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.image


class Branching(nn.Module):
    """No graph: what it does depends on the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(1))
        return logits if x.flatten().sort().values.tolist()[0] > -100 else -logits


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(192, 4)),
            r"must return shape \(2, 3\) .* 3 labels, got \(2, 4\)",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(100, 3)),
            r"does not take images of shape \(3, 8, 8\)",
        ),
        (Named(), "called 'image'"),
    ],
    ids=["classes", "shape", "name"],
)
def test_a_network_that_does_not_fit_is_refused_in_one_sentence(
    network: nn.Module, words: str, spec: ModelSpec
) -> None:
    with pytest.raises(ExportError, match=words) as caught:
        Template.trace(network, spec)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@since_2_9
def test_a_network_that_cannot_be_traced_is_refused_in_one_sentence(spec: ModelSpec) -> None:
    with pytest.raises(ExportError, match="'net' cannot be traced to ONNX") as caught:
        Template.trace(Branching(), spec, exporters=[dynamo])
    assert "\n" not in str(caught.value)


def dims(value: onnx.ValueInfoProto) -> list[str | int]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
