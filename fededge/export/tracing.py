"""Tracing of a network to an ONNX graph without weights: each tensor is an input."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fededge import __version__
from fededge.errors import ExportError
from fededge.export.manifest import INPUT, OUTPUT, TOKENS, input_name
from fededge.flat import Layout
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess
from fededge.predictor.providers import first_line

if TYPE_CHECKING:
    import onnx

__all__ = [
    "EXPORTERS",
    "Deployed",
    "Exporter",
    "dry_run",
    "examples",
    "trace_without_weights",
]

BATCH = "batch"

# 17 is the last opset that TensorRT 8.5 and 8.6 read (JetPack 5.1 and 6.0), and IR 8 belongs to
# it: ONNX Runtime has read both since 2022. Nothing here needs a later one.
OPSET, IR_VERSION = 17, 8


def examples(spec: ModelSpec, count: int) -> Tensor:
    """Return random inputs for this spec, equal on every call."""
    generator = torch.Generator().manual_seed(0)
    most, dtype = (spec.vocabulary, torch.int64) if spec.kind == "text" else (256, torch.uint8)
    return torch.randint(0, most, (count, *spec.shape), generator=generator, dtype=dtype)


class Deployed(nn.Module):
    """The exported network: pixels or tokens in, probabilities out; on the CPU, in eval mode."""

    def __init__(self, module: nn.Module, spec: ModelSpec) -> None:
        super().__init__()
        self.preprocess = Preprocess(spec)
        self.network = copy.deepcopy(module).cpu()
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.softmax(self.network(self.preprocess(inputs)), dim=1)


class WeightsAsInputs(nn.Module):
    """A deployed network that takes its weights as arguments.

    An exporter may fold, fuse, transpose, merge or rename a module's weights. It cannot do so with
    inputs of the graph, and the layout's names stay.
    """

    def __init__(self, deployed: Deployed, name: str = INPUT) -> None:
        super().__init__()
        self.deployed = deployed
        self.name = name
        self.layout = Layout.of(deployed.network)
        self.places = list(_places(deployed.network, self.layout))
        for _, owner, attribute in self.places:
            # A tensor that the network reaches by other ways than its attributes would become a
            # constant of the graph: NaN makes the first parity check fail then.
            getattr(owner, attribute).data.fill_(torch.nan)
        for _, owner, attribute in self.places:
            owner._parameters.pop(attribute, None)
            owner._buffers.pop(attribute, None)

    def forward(self, inputs: Tensor, *tensors: Tensor) -> Tensor:
        for index, owner, attribute in self.places:
            setattr(owner, attribute, tensors[index])
        try:
            probabilities: Tensor = self.deployed(inputs)
        finally:
            for _, owner, attribute in self.places:
                vars(owner).pop(attribute, None)
        return probabilities


Exporter = Callable[[WeightsAsInputs, tuple[Tensor, ...]], "onnx.ModelProto"]


def dry_run(module: nn.Module, spec: ModelSpec) -> None:
    """Refuse a network that does not return one logit per label for inputs of the spec's shape."""
    try:
        with torch.inference_mode():
            shape = tuple(Deployed(module, spec)(examples(spec, 2)).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ExportError(
            f"'{spec.name}' does not take {spec.kind}s of shape {spec.shape} ({first_line(error)})"
        ) from error
    if shape != (2, spec.classes):
        raise ExportError(
            f"'{spec.name}' must return shape (2, {spec.classes}) for 2 {spec.kind}s and "
            f"{spec.classes} labels, got {shape}"
        )


def trace_without_weights(
    module: nn.Module, spec: ModelSpec, exporter: Exporter
) -> onnx.ModelProto:
    """Trace a network to a graph whose only input is the image or text.

    The graph names the weights, but does not define them: `Template.fill` adds them.
    """
    network = WeightsAsInputs(Deployed(module, spec), input_name(spec))
    _check_names(network.layout)
    tensors = (torch.zeros(entry.shape) for entry in network.layout.entries)
    try:
        with _quiet(), torch.no_grad():
            # Two inputs: torch's exporter treats a batch size of one as a constant.
            model = exporter(network, (examples(spec, 2), *tensors))
    except Exception as error:  # exporters of different torch releases raise different ones
        reason = first_line(error.__cause__ or error)
        raise ExportError(f"'{spec.name}' cannot be traced to ONNX ({reason})") from error
    _tidy(model, spec)
    return model


def torchscript(network: WeightsAsInputs, example: tuple[Tensor, ...]) -> onnx.ModelProto:
    """Trace with torch's older exporter: LeNet takes 0.2 s and 120 imports (newer: 5 s, 1,800)."""
    import onnx

    file = io.BytesIO()
    # torch.onnx has types for the newer exporter's arguments only.
    export: Any = torch.onnx.export
    export(
        network,
        example,
        file,
        dynamo=False,
        opset_version=OPSET,
        input_names=_input_names(network),
        output_names=[OUTPUT],
        dynamic_axes={network.name: {0: BATCH}, OUTPUT: {0: BATCH}},
    )
    return onnx.load_model_from_string(file.getvalue())


def dynamo(network: WeightsAsInputs, example: tuple[Tensor, ...]) -> onnx.ModelProto:
    """Trace with torch's newer exporter: no opset below 18, no dynamic batch before torch 2.6."""
    batch = {0: torch.export.Dim(BATCH)}
    shapes = {"inputs": batch, "tensors": tuple(None for _ in example[1:])}
    program = torch.export.export(network, example, dynamic_shapes=shapes, strict=False)
    # `args` has no default in some releases; a program needs none.
    result = torch.onnx.export(
        program,
        (),
        dynamo=True,
        verbose=False,
        opset_version=OPSET,
        input_names=_input_names(network),
        output_names=[OUTPUT],
    )
    assert result is not None  # None is the older exporter's answer
    return result.model_proto


# The older exporter works on every torch from 2.5; the newer one needs a matching onnxscript. The
# older one is deprecated, so the newer one is tried where it is gone or fails.
EXPORTERS: tuple[Exporter, ...] = (torchscript, dynamo)


def _input_names(network: WeightsAsInputs) -> list[str]:
    return [network.name, *(entry.name for entry in network.layout.entries)]


def _places(network: nn.Module, layout: Layout) -> Iterator[tuple[int, nn.Module, str]]:
    """Yield every attribute that holds a tensor of the layout: tensor index, module, attribute."""
    for index, entry in enumerate(layout.entries):
        for name in (entry.name, *entry.aliases):
            prefix, _, attribute = name.rpartition(".")
            yield index, network.get_submodule(prefix), attribute


def _check_names(layout: Layout) -> None:
    for entry in layout.entries:
        if entry.name in (INPUT, TOKENS, OUTPUT):
            raise ExportError(
                f"a tensor of the network is called '{entry.name}', but the ONNX file reserves "
                f"'{INPUT}', '{TOKENS}' and '{OUTPUT}': rename it"
            )


def _tidy(model: onnx.ModelProto, spec: ModelSpec) -> None:
    """Remove the weights from the graph's inputs, and all traces of this machine."""
    graph = model.graph
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "fededge", __version__
    for part in (model, graph, *graph.input, *graph.output, *graph.node, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    (fed,) = (value for value in graph.input if value.name == input_name(spec))
    closed = type(fed)()
    closed.CopyFrom(fed)
    del graph.input[:], graph.value_info[:]
    graph.input.append(closed)
    graph.name = spec.name
    _set_shape(graph.input[0], spec.shape)
    _set_shape(graph.output[0], (spec.classes,))


def _set_shape(value: onnx.ValueInfoProto, shape: Sequence[int]) -> None:
    dims = value.type.tensor_type.shape
    dims.ClearField("dim")
    dims.dim.add().dim_param = BATCH
    for size in shape:
        dims.dim.add().dim_value = size


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporters' warnings and log lines, which are about their internals."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
