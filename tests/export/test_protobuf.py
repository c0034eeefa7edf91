from __future__ import annotations

import onnx
from hypothesis import given
from hypothesis import strategies as st

from fededge.export.protobuf import header, integer, message


@given(st.integers(0, 2**63 - 1))
def test_numbers_are_read_by_protobuf_as_they_were_written(value: int) -> None:
    assert list(onnx.TensorProto.FromString(integer(1, value)).dims) == [value]


@given(st.text(max_size=300), st.binary(max_size=300))
def test_texts_and_bytes_are_read_by_protobuf_as_they_were_written(text: str, raw: bytes) -> None:
    data = message(8, text.encode()) + header(9, len(raw)) + raw
    tensor = onnx.TensorProto.FromString(data)
    assert (tensor.name, tensor.raw_data) == (text, raw)


def test_a_field_number_above_15_takes_two_bytes() -> None:
    """`metadata_props` of a TensorProto is field 16."""
    inner = message(1, b"key") + message(2, b"value")
    (entry,) = onnx.TensorProto.FromString(message(16, inner)).metadata_props
    assert (entry.key, entry.value) == ("key", "value")
