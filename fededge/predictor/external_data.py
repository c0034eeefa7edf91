"""ONNX files that stand for themselves: a graph can name further files, which no manifest covers.

ONNX Runtime would read them from the working folder, or from anywhere. So a model that names one is
refused before it is loaded. An app has no onnx package: here is as much of protobuf as that takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["names_other_files"]

# Where onnx.proto has tensors, and messages with tensors inside: the number of the field.
INSIDE: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {},
}
TENSOR_EXTERNAL, TENSOR_LOCATION = 13, 14
NODE_TYPE, FROM_A_FILE = 4, b"EPContext"
"""A node whose network a provider reads from a file of its own."""

ANOTHER_FORMAT = b"ORTM"
"""In its bytes 4 to 8: ONNX Runtime's own format, which it would read instead."""

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
FIXED = {EIGHT: 8, FOUR: 4}


class Field(NamedTuple):
    """A field of a message: its number, and its value or where its bytes are."""

    number: int
    value: int
    first: int
    last: int


def names_other_files(model: bytes) -> str:
    """Why a model cannot be trusted to be all in this file; empty if it is."""
    if model[4:8] == ANOTHER_FORMAT:
        return "it is not an ONNX file"
    try:
        return _look(memoryview(model))
    except ValueError:
        return "it is not an ONNX file, or a damaged one"


def _look(data: memoryview) -> str:
    waiting = [("ModelProto", 0, len(data))]
    while waiting:
        kind, first, last = waiting.pop()
        for field in _fields(data, first, last):
            if kind == "TensorProto" and _external(field):
                return "it has weights in another file, which its manifest does not cover"
            if kind == "NodeProto" and _reads_a_file(data, field):
                return "it has a node that reads another file"
            inner = INSIDE[kind].get(field.number)
            if inner is not None:
                waiting.append((inner, field.first, field.last))
    return ""


def _external(field: Field) -> bool:
    return field.number == TENSOR_EXTERNAL or (field.number == TENSOR_LOCATION and field.value != 0)


def _reads_a_file(data: memoryview, field: Field) -> bool:
    return field.number == NODE_TYPE and data[field.first : field.last] == FROM_A_FILE


def _fields(data: memoryview, place: int, end: int) -> Iterator[Field]:
    """The fields of a message; a ValueError if its bytes are none."""
    while place < end:
        tag, place = _varint(data, place, end)
        number, kind = tag >> 3, tag & 7
        value, first = 0, place
        if kind == VARINT:
            value, place = _varint(data, place, end)
        elif kind == BYTES:
            length, first = _varint(data, place, end)
            place = first + length
        else:
            place += FIXED.get(kind, end)  # a group, which ONNX does not have, leads beyond the end
        if not number or tag >> 32 or place > end:
            raise ValueError("not a message")
        yield Field(number, value, first, place)


def _varint(data: memoryview, place: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= end:
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("not a number")
