"""Tensors on the wire: valid safetensors with exactly the layout's tensors, all finite."""

from __future__ import annotations

import io
import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn

from fededge.errors import EgressError, WireError
from fededge.flat import FlatModel, Layout, Vector, as_numpy
from fededge.method.private import Private
from fededge.wire import container, tensors


def network() -> nn.Module:
    """Parameters, float buffers, an integer buffer, and a scalar."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    module.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))
    return module


LAYOUT = Layout.of(network())
VECTOR = as_numpy(torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(1)))
GOOD = tensors.encode(LAYOUT, {"model": VECTOR})


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: dict[str, Any] | bytes, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_the_bytes_are_safetensors_with_the_names_of_the_module() -> None:
    """Read by the safetensors library itself, and compared with the module's own state dict."""
    module = network()
    vector = as_numpy(FlatModel(module).vector)
    found = safetensors.torch.load(tensors.encode(LAYOUT, {"model": vector}))
    expected = {k: v for k, v in module.state_dict().items() if v.is_floating_point()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("numbers", ["float32", "float16", "bfloat16", "int8"])
def test_the_bytes_are_those_that_the_safetensors_library_writes(numbers: Any) -> None:
    """Read and written again by it: the same order of tensors, the same header, to the byte."""
    data = tensors.encode(LAYOUT, {"model": VECTOR, "c": VECTOR}, numbers)
    assert safetensors.torch.save(safetensors.torch.load(data)) == data


@pytest.mark.parametrize("numbers", ["float32", "float16", "bfloat16", "int8"])
def test_a_file_is_read_as_its_bytes_are(numbers: Any, tmp_path: Path) -> None:
    data = tensors.encode(LAYOUT, {"model": VECTOR}, numbers)
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as file:
        found = tensors.decode(LAYOUT, file, numbers=numbers)["model"]
    assert np.array_equal(found, tensors.decode(LAYOUT, data, numbers=numbers)["model"])


LOWER = (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
"""Lower halves of a float32: on a bfloat16, beside it, and at and around the middle of two."""


def everywhere() -> tuple[Layout, Vector]:
    """Numbers beside every bfloat16 of either sign: zeros, subnormal numbers, infinities."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    numbers = (upper[:, None] | np.array(LOWER, np.uint32)).reshape(-1).view(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    assert len(numbers) == len(LOWER) * 2**16 - 2 * (128 * len(LOWER) - 1)
    return Layout.of(nn.ParameterList([torch.zeros(len(numbers))])), numbers


@pytest.mark.parametrize("numbers", ["float16", "bfloat16"])
def test_rounding_is_torchs_to_the_bit(numbers: Any) -> None:
    layout, vector = everywhere()
    kind = getattr(torch, numbers)
    most = np.inf if numbers == "bfloat16" else 65504.0
    expected = torch.from_numpy(vector).clamp(-most, most).to(kind)
    data = tensors.encode(layout, {"model": vector}, numbers)
    first, last = tensors.spans(data)["0"]
    assert data[first:last] == expected.view(torch.int16).numpy().tobytes()


def test_float16_rounds_as_torch_does_between_any_two_of_its_numbers() -> None:
    """At each of them, at the middle to the next one, and one float32 below and above both."""
    halves = torch.arange(0x7C00, dtype=torch.int16).view(torch.float16).double()
    middles = (halves[1:] + halves[:-1]) / 2
    points = as_numpy(torch.cat([halves, middles]).float())
    around = [points, np.nextafter(points, np.float32(-1e9)), np.nextafter(points, np.float32(1e9))]
    vector = np.concatenate([*around, *(-part for part in around)])
    layout = Layout.of(nn.ParameterList([torch.zeros(len(vector))]))
    data = tensors.encode(layout, {"model": vector}, "float16")
    first, last = tensors.spans(data)["0"]
    expected = torch.from_numpy(vector).clamp(-65504, 65504).half()
    assert data[first:last] == expected.view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize("numbers", ["float16", "bfloat16"])
def test_a_nan_stays_one_in_16_bits(numbers: Any) -> None:
    """Including NaNs whose upper half alone is infinity, and the one that rounding would make 0."""
    bits = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    layout = Layout.of(nn.ParameterList([torch.zeros(len(bits))]))
    data = tensors.encode(layout, {"model": bits.view(np.float32)}, numbers)
    assert safetensors.torch.load(data)["0"].isnan().all()


@pytest.mark.parametrize("numbers", ["float16", "bfloat16"])
def test_every_16_bit_number_arrives_as_torch_reads_it_or_is_refused(numbers: Any) -> None:
    """All 65,536 of them; those that are not finite one by one, without a numpy warning."""
    every = np.arange(2**16, dtype=np.uint16)
    expected = torch.from_numpy(every.view(np.int16)).view(getattr(torch, numbers)).float()
    good = expected.isfinite().numpy()
    layout = Layout.of(nn.ParameterList([torch.zeros(int(good.sum()))]))
    zeros = np.zeros(layout.size, np.float32)
    empty = tensors.encode(layout, {"model": zeros}, numbers)[: -2 * layout.size]
    found = tensors.decode(layout, empty + every[good].tobytes(), numbers=numbers)["model"]
    assert found.tobytes() == expected.numpy()[good].tobytes()
    single = Layout.of(nn.ParameterList([torch.zeros(1)]))
    header = tensors.encode(single, {"model": zeros[:1]}, numbers)[:-2]
    for bits in every[~good]:
        with pytest.raises(WireError, match="not finite"):
            tensors.decode(single, header + bits.tobytes(), numbers=numbers)


def test_tensors_that_lie_over_each_other_or_apart_are_refused() -> None:
    header, body = parts(GOOD)
    names = sorted(header, key=lambda name: header[name]["data_offsets"])
    last = header[names[-1]]["data_offsets"]
    for offsets, tail in (([0, last[1] - last[0]], b""), ([last[0] + 4, last[1] + 4], b"1234")):
        moved = header | {names[-1]: header[names[-1]] | {"data_offsets": offsets}}
        with pytest.raises(WireError, match="overlap or leave a gap"):
            tensors.decode(LAYOUT, joined(moved, body + tail))


def test_a_header_may_say_more_of_the_whole_and_nothing_more_of_a_tensor() -> None:
    header, body = parts(GOOD)
    about = {"__metadata__": {"made by": "another program"}}
    assert np.array_equal(tensors.decode(LAYOUT, joined(about | header, body))["model"], VECTOR)
    for odd in ({"__metadata__": {"a": 1}}, {"scale": header["scale"] | {"more": 1}}):
        with pytest.raises(WireError):
            tensors.decode(LAYOUT, joined(header | odd, body))


def test_a_header_that_is_longer_than_an_honest_one_is_not_read() -> None:
    header, body = parts(GOOD)
    with pytest.raises(WireError, match="no header of at most"):
        tensors.decode(LAYOUT, joined(json.dumps(header).encode() + b" " * 10_000, body))


def test_vectors_come_back_bit_by_bit() -> None:
    vector = VECTOR.copy()
    vector[:4] = [-0.0, 1e-45, 3.4028235e38, -1e-38]
    other = np.arange(LAYOUT.size, dtype=np.float32)
    data = tensors.encode(LAYOUT, {"model": vector, "c": other})
    found = tensors.decode(LAYOUT, data, ("model", "c"))
    assert found["model"].tobytes() == vector.tobytes()
    assert found["c"].tobytes() == other.tobytes()
    assert {"scale", "c/scale"} <= parts(data)[0].keys()


def test_a_vector_that_is_not_expected_is_refused() -> None:
    data = tensors.encode(LAYOUT, {"model": VECTOR, "c": VECTOR})
    with pytest.raises(WireError, match="c/"):
        tensors.decode(LAYOUT, data)
    with pytest.raises(WireError, match="c/"):
        tensors.decode(LAYOUT, GOOD, ("model", "c"))


@pytest.mark.parametrize(
    "value",
    [
        VECTOR[:-1],
        VECTOR.reshape(1, -1),
        np.float32(1.0),
        np.array(1.0, np.float32),
        torch.from_numpy(VECTOR),
        VECTOR.tolist(),
        1.0,
        b"raw",
        Private({"layer.x": torch.from_numpy(VECTOR)}),
        {"x": VECTOR},
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_is_not_a_vector_of_the_layout_is_not_sent(value: Any) -> None:
    with pytest.raises(EgressError, match="must not be sent"):
        tensors.encode(LAYOUT, {"model": value})


def test_encoding_leaves_its_input_alone_and_takes_any_strides() -> None:
    wide = np.random.default_rng(2).normal(size=(LAYOUT.size, 2)).astype(np.float32)
    before = wide.copy()
    data = tensors.encode(LAYOUT, {"model": wide[:, 1]})
    assert np.array_equal(wide, before)
    assert np.array_equal(tensors.decode(LAYOUT, data)["model"], before[:, 1])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    for place in (0, LAYOUT.size // 2, LAYOUT.size - 1):
        vector = VECTOR.copy()
        vector[place] = value
        with pytest.raises(WireError, match="not finite"):
            tensors.decode(LAYOUT, tensors.encode(LAYOUT, {"model": vector}))


DTYPES = {"F16": 2, "BF16": 2, "F64": 8, "I32": 4, "I64": 8, "U8": 1, "BOOL": 1, "F8_E4M3": 1}


@pytest.mark.parametrize("dtype", [*DTYPES, "F4", "C64", "OBJECT"])
def test_another_dtype_is_refused(dtype: str) -> None:
    header, body = parts(GOOD)
    for name, size in (("scale", DTYPES.get(dtype, 4)), ("scale", 4)):
        changed = dict(header)
        first = header[name]["data_offsets"][0]
        changed[name] = {"dtype": dtype, "shape": [], "data_offsets": [first, first + size]}
        with pytest.raises(WireError):
            tensors.decode(LAYOUT, joined(changed, body))


def test_another_shape_or_name_is_refused() -> None:
    header, body = parts(GOOD)
    for change in (
        {"3.weight": header["3.weight"] | {"shape": [8, 3]}},
        {"3.weight": header["3.weight"] | {"shape": [24]}},
        {"3.weight": header["3.weight"] | {"shape": [2**32, 2**32]}},
        {"3.weight": header["3.weight"] | {"shape": [-3, -8]}},
        {"3.weight": header["3.weight"] | {"data_offsets": [0, 96]}},
        {"3.weight": header["3.weight"] | {"data_offsets": [96, 0]}},
        {"3.weight": header["3.weight"] | {"data_offsets": [0, 2**63]}},
        {"extra": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}},
    ):
        with pytest.raises(WireError):
            tensors.decode(LAYOUT, joined(header | change, body))
    renamed = {("3.wéight" if name == "3.weight" else name): v for name, v in header.items()}
    with pytest.raises(WireError, match=r"3\.w"):
        tensors.decode(LAYOUT, joined(renamed, body))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"\0" * 8,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 10**9) + b"{}",
        joined(b"[" * 100_000, b""),
        joined(b'{"a":' * 100_000, b""),
        joined(b"{}", b""),
        joined(b"{}", b"data"),
        joined(b'{"__metadata__":{"a":"b"}}', b""),
        joined(b"\xff\xfe", b""),
        GOOD + b"\0",
        GOOD[:-1],
        b"PK\x03\x04" + GOOD,
        b"\x80\x04\x95" + GOOD,
    ],
)
def test_bytes_that_are_not_safetensors_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        tensors.decode(LAYOUT, data)


def test_a_refusal_is_short_enough_for_a_reply() -> None:
    entry = {"dtype": "F32", "shape": [0] * 60, "data_offsets": [0, 0]}
    for header in ({f"{index}{'x' * 10**6}": entry for index in range(5)}, {"scale": entry}):
        with pytest.raises(WireError) as caught:
            tensors.decode(LAYOUT, joined(header, b""))
        assert len(str(caught.value)) < 500


def test_every_cut_is_refused() -> None:
    for end in range(len(GOOD)):
        with pytest.raises(WireError):
            tensors.decode(LAYOUT, GOOD[:end])


def test_mutations_are_a_model_or_a_wire_error() -> None:
    """Thousands of altered payloads, most of them altered in the header."""
    rng = random.Random(0)
    edge = len(GOOD) - 4 * LAYOUT.size
    outcomes = {True: 0, False: 0}
    for _ in range(6000):
        data = bytearray(GOOD)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(min(len(data), edge + 16)) if data else 0
            match rng.randrange(4):
                case 0:
                    data[place : place + 1] = bytes([rng.randrange(256)])
                case 1:
                    del data[place : place + rng.randrange(1, 9)]
                case 2:
                    data[place:place] = rng.randbytes(rng.randrange(1, 9))
                case 3:
                    data[place : place + 1] = rng.choice([b"9", b"0", b"-", b'"', b"]", b"}", b","])
        try:
            model = tensors.decode(LAYOUT, bytes(data))["model"]
        except WireError:
            outcomes[False] += 1
        else:
            assert model.shape == (LAYOUT.size,)
            assert np.isfinite(model).all()
            outcomes[True] += 1
    assert min(outcomes.values()) > 0


def test_an_honest_payload_is_within_the_limit() -> None:
    """Also for layouts of many tiny tensors with long names, where the header is most of it."""
    tiny = nn.ModuleDict(
        {f"a_rather_long_name_for_a_layer_{index}": nn.Linear(1, 1) for index in range(300)}
    )
    for module in (network(), tiny, nn.Linear(1, 1), nn.Identity()):
        layout = Layout.of(module)
        vectors = {key: np.zeros(layout.size, np.float32) for key in ("model", "control")}
        size = len(tensors.encode(layout, vectors))
        assert size <= tensors.payload_limit(layout, 2)
        one = len(tensors.encode(layout, {"model": vectors["model"]}))
        assert one <= tensors.payload_limit(layout) <= one + 4096 + 500 * len(layout.entries)


def test_spans_say_where_each_tensor_lies() -> None:
    views = LAYOUT.views(torch.from_numpy(VECTOR))
    spans = tensors.spans(GOOD)
    assert spans.keys() == views.keys()
    for name, (first, last) in spans.items():
        assert GOOD[first:last] == views[name].numpy().tobytes()
    assert sum(last - first for first, last in spans.values()) == 4 * LAYOUT.size


# The container, for what a service keeps for itself

KEPT = {
    np.dtype(kind).name: np.arange(6).reshape(2, 3).astype(kind)
    for kind in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?")
}


def test_arrays_of_every_kind_and_shape_are_kept_as_the_safetensors_library_would(
    tmp_path: Path,
) -> None:
    turned = np.asfortranarray(KEPT["float32"])
    arrays = {
        **KEPT,
        "scalar": np.array(3),
        "empty": np.zeros((0, 4), np.float32),
        "turned": turned,
    }
    file = io.BytesIO()
    container.write(file, {name: container.from_array(array) for name, array in arrays.items()})
    theirs = safetensors.numpy.load(file.getvalue())
    (tmp_path / "kept").write_bytes(file.getvalue())
    with (tmp_path / "kept").open("rb") as kept:
        ours = {name: container.to_array(plain) for name, plain in container.read(kept).items()}
    assert ours.keys() == theirs.keys() == arrays.keys()
    for name, array in arrays.items():
        for found in (ours[name], theirs[name]):
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert np.array_equal(found, array)
        assert ours[name].flags.writeable


def test_numbers_that_numpy_does_not_have_are_refused_as_an_array() -> None:
    plain = container.RawTensor(container.TensorSpec("BF16", (2,)), memoryview(bytes(4)))
    with pytest.raises(WireError, match="no dtype BF16"):
        container.to_array(plain)
