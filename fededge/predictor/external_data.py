"""Check that an ONNX file refers to no other file, which no manifest would cover.

ONNX Runtime reads external data from the working folder, or from anywhere. So a model that names
another file is refused before it is loaded. An app has no onnx package, so this module parses as
much of protobuf as the check needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["names_other_files"]

# Fields of onnx.proto that hold tensors, or messages with tensors inside: number and type.
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
"""Type of a node whose network an execution provider reads from another file."""

ORT_FORMAT = b"ORTM"
"""Bytes 4 to 8 of ONNX Runtime's own format, which it would accept as well."""

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
FIXED = {EIGHT: 8, FOUR: 4}


class Field(NamedTuple):
    """A field of a protobuf message: its number, and its value or the offsets of its bytes."""

    number: int
    value: int
    first: int
    last: int


def names_other_files(model: bytes) -> str:
    """The reason why a model may refer to other files; empty if it does not."""
    if model[4:8] == ORT_FORMAT:
        return "it is not an ONNX file"
    try:
        return _find_reference(memoryview(model))
    except ValueError:
        return "it is not an ONNX file, or a damaged one"


def _find_reference(data: memoryview) -> str:
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
    """Yield the fields of a message; ValueError if the bytes are not a message."""
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
            place += FIXED.get(kind, end)  # a group, which ONNX does not use, is refused below
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
