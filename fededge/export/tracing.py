"""From a network to an ONNX graph whose weights are still open: one input for each tensor."""

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
from fededge.flat import Layout
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess
from fededge.predictor.providers import first_line

if TYPE_CHECKING:
    import onnx

__all__ = [
    "EXPORTERS",
    "INPUT",
    "OUTPUT",
    "TOKENS",
    "Deployed",
    "Exporter",
    "dry_run",
    "examples",
    "input_name",
    "open_graph",
]

INPUT, TOKENS, OUTPUT, BATCH = "image", "tokens", "probabilities", "batch"

# 17 is the last opset that TensorRT 8.5 and 8.6 read (those of JetPack 5.1 and 6.0), and IR 8
# belongs to it: ONNX Runtime has read both since 2022. Later ones add nothing that is used here.
OPSET, IR_VERSION = 17, 8


def input_name(spec: ModelSpec) -> str:
    """How the ONNX file calls what an app feeds."""
    return TOKENS if spec.kind == "text" else INPUT


def examples(spec: ModelSpec, count: int) -> Tensor:
    """So many random inputs of this kind, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    most, dtype = (spec.vocabulary, torch.int64) if spec.kind == "text" else (256, torch.uint8)
    return torch.randint(0, most, (count, *spec.shape), generator=generator, dtype=dtype)


class Deployed(nn.Module):
    """What an app runs: pixels or tokens in, probabilities out. On the CPU, in evaluation mode."""

    def __init__(self, module: nn.Module, spec: ModelSpec) -> None:
        super().__init__()
        self.preprocess = Preprocess(spec)
        self.network = copy.deepcopy(module).cpu()
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.softmax(self.network(self.preprocess(inputs)), dim=1)


class Open(nn.Module):
    """A deployed network that gets its weights as arguments.

    An exporter may fold, fuse, transpose, merge or rename the weights that it finds in a module;
    with inputs of the graph it can do none of it, and the layout's names stay.
    """

    def __init__(self, deployed: Deployed, name: str = INPUT) -> None:
        super().__init__()
        self.deployed = deployed
        self.name = name
        self.layout = Layout.of(deployed.network)
        self.places = list(_places(deployed.network, self.layout))
        for _, owner, attribute in self.places:
            # A tensor that the network reaches by another way than its attributes would stay in
            # the graph as a constant: not a number, so that the first comparison shows it.
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


Exporter = Callable[[Open, tuple[Tensor, ...]], "onnx.ModelProto"]


def dry_run(module: nn.Module, spec: ModelSpec) -> None:
    """Refuse a network that does not give one number a label for inputs of the spec's shape."""
    try:
        with torch.inference_mode():
            given = tuple(Deployed(module, spec)(examples(spec, 2)).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ExportError(
            f"'{spec.name}' does not take {spec.kind}s of shape {spec.shape} ({first_line(error)})"
        ) from error
    if given != (2, spec.classes):
        raise ExportError(
            f"'{spec.name}' gives {given} for 2 {spec.kind}s, it must be (2, {spec.classes}): "
            f"there are {spec.classes} labels"
        )


def open_graph(module: nn.Module, spec: ModelSpec, exporter: Exporter) -> onnx.ModelProto:
    """Trace a network; of the inputs only the image or text remains, the weights' names dangle."""
    network = Open(Deployed(module, spec), input_name(spec))
    _check_names(network.layout)
    tensors = (torch.zeros(entry.shape) for entry in network.layout.entries)
    try:
        with _quiet(), torch.no_grad():
            # Two inputs: torch's exporter takes a batch of one for a constant.
            model = exporter(network, (examples(spec, 2), *tensors))
    except Exception as error:  # which ones an exporter raises differs between torch's releases
        reason = first_line(error.__cause__ or error)
        raise ExportError(f"'{spec.name}' cannot be traced to ONNX ({reason})") from error
    _tidy(model, spec)
    return model


def torchscript(network: Open, example: tuple[Tensor, ...]) -> onnx.ModelProto:
    """Torch's older exporter: 0.2 s and 120 imports for LeNet; the newer one has 5 s and 1,800."""
    import onnx

    file = io.BytesIO()
    # torch.onnx has types for the newer exporter's arguments only
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


def dynamo(network: Open, example: tuple[Tensor, ...]) -> onnx.ModelProto:
    """Torch's newer exporter: no opset below 18, and before torch 2.6 no batch of any size."""
    batch = {0: torch.export.Dim(BATCH)}
    shapes = {"inputs": batch, "tensors": tuple(None for _ in example[1:])}
    program = torch.export.export(network, example, dynamic_shapes=shapes, strict=False)
    # In some releases `args` has no default, and a program needs none.
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


# The older exporter works on every torch from 2.5, while the newer one wants just the onnxscript
# of its time; but the older one is deprecated, so the newer takes over where it is gone or refuses.
EXPORTERS: tuple[Exporter, ...] = (torchscript, dynamo)


def _input_names(network: Open) -> list[str]:
    return [network.name, *(entry.name for entry in network.layout.entries)]


def _places(network: nn.Module, layout: Layout) -> Iterator[tuple[int, nn.Module, str]]:
    """Every attribute that holds a tensor of the layout: which tensor, whose attribute."""
    for index, entry in enumerate(layout.entries):
        for name in (entry.name, *entry.aliases):
            prefix, _, attribute = name.rpartition(".")
            yield index, network.get_submodule(prefix), attribute


def _check_names(layout: Layout) -> None:
    for entry in layout.entries:
        if entry.name in (INPUT, TOKENS, OUTPUT):
            raise ExportError(
                f"a tensor of the network is called '{entry.name}', as the ONNX file's own "
                f"'{INPUT}', '{TOKENS}' and '{OUTPUT}' are: rename it"
            )


def _tidy(model: onnx.ModelProto, spec: ModelSpec) -> None:
    """Close the graph, and drop what tells about the machine it was traced on."""
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
    """No warnings and no log lines of the exporters: they speak of their own insides."""
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
