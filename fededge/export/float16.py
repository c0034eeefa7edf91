"""Conversion of a float32 ONNX file to float16: faster on GPUs, and half the size."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from fededge.errors import ExportError

if TYPE_CHECKING:
    import onnx

__all__ = ["to_float16"]


def to_float16(model: bytes, weights: Collection[str]) -> bytes:
    """Return the model with float16 weights and arithmetic.

    The nodes before the first weight (the normalisation of pixels) and the final softmax stay in
    float32: they are cheap, and an app sees the same input and output.

    Args:
        model: the float32 ONNX file.
        weights: the names of the initialisers that are the model's weights.
    """
    import onnx

    proto = onnx.load_model_from_string(model)
    nodes = _Half(proto, weights).nodes()
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            _halve(tensor)
    data: bytes = proto.SerializeToString()
    return data


class _Half:
    """One pass over the nodes, in order; inserts casts between float32 and float16."""

    def __init__(self, model: onnx.ModelProto, weights: Collection[str]) -> None:
        import onnx

        inferred = onnx.shape_inference.infer_shapes(model).graph
        self.graph = model.graph
        self.weights = weights
        self.floats = {
            value.name
            for value in inferred.value_info
            if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        }
        self.early: set[str] = {value.name for value in self.graph.input}
        self.early |= {t.name for t in self.graph.initializer} - set(weights)
        self.casts: dict[str, onnx.NodeProto] = {}
        self.made: list[onnx.NodeProto] = []

    def nodes(self) -> list[onnx.NodeProto]:
        import onnx

        last = {value.name for value in self.graph.output}
        for node in self.graph.node:
            if all(name in self.early for name in node.input if name):
                self.early.update(node.output)
            elif last & set(node.output):
                self._feed(node, onnx.TensorProto.FLOAT)
            else:
                self._feed(node, onnx.TensorProto.FLOAT16)
                _retarget(node)
            self.made.append(node)
        return self.made

    def _feed(self, node: onnx.NodeProto, kind: int) -> None:
        """Cast the inputs of a node that are floats of the other type."""
        import onnx

        early = kind == onnx.TensorProto.FLOAT16
        node.input[:] = [
            self._cast(name, kind)
            if (name in self.floats or name in self.weights) and (name in self.early) == early
            else name
            for name in node.input
        ]

    def _cast(self, name: str, kind: int) -> str:
        import onnx

        made = f"{name}/{onnx.TensorProto.DataType.Name(kind)}"
        if made not in self.casts:
            self.casts[made] = onnx.helper.make_node("Cast", [name], [made], to=kind)
            self.made.append(self.casts[made])
        return made


def _retarget(node: onnx.NodeProto) -> None:
    """Turn a cast to float32 inside the network into one to float16."""
    import onnx

    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.i == onnx.TensorProto.FLOAT:
            attribute.i = onnx.TensorProto.FLOAT16


def _halve(tensor: onnx.TensorProto) -> None:
    import onnx

    numbers = onnx.numpy_helper.to_array(tensor)
    with np.errstate(over="ignore"):
        half = numbers.astype(np.float16)
    if not np.isfinite(half).all():
        raise ExportError(f"'{tensor.name}' has numbers that float16 cannot hold")
    tensor.CopyFrom(onnx.numpy_helper.from_array(half, tensor.name))
