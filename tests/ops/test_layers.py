"""A convolution with its rectifier and pooling in one pass, against torch's layers in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.library import opcheck

from fededge import ops
from fededge.models.precision import channels_last
from fededge.ops import _backend
from tests.ops.images import LAYOUTS, LENET, PADDED, SECOND, SHAPES, WIDE, Shape, layers
from tests.ops.inputs import many
from tests.ops.levels import UNFUSED, each_level

compiled = pytest.mark.skipif(_backend.CHOICE.name != "cpu", reason=_backend.CHOICE.reason)


def sizes_of_sums(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """The scale of a sum's rounding error: the sum of its absolute terms."""
    return layers(x.abs(), weight.abs(), None if bias is None else bias.abs(), padding)


@pytest.mark.usefixtures("implementation")
@many
@given(SHAPES, st.sampled_from(list(LAYOUTS)), st.booleans(), st.booleans(), st.integers(0, 99))
@example(LENET, "channels last", True, True, 0)
@example(SECOND, "channels last", True, False, 0)
@example(WIDE, "channels first", False, False, 0)
@example(PADDED, "columns first", True, True, 0)
@example(PADDED._replace(images=0), "channels last", True, True, 0)
def test_the_layers_in_float64(
    shape: Shape, layout: str, biased: bool, weight_last: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    x, weight = LAYOUTS[layout](shape.x(draw)), shape.weight(draw)
    weight = channels_last(weight) if weight_last else weight
    bias = torch.randn(2 * shape.outputs, generator=draw)[::2] if biased else None
    sides = [s + 2 * shape.padding - k for s, k in zip(x.shape[2:], shape.kernel, strict=True)]
    if min(sides) < 1:
        return  # nothing to pool: refused, see below
    kept = x.clone()
    found = ops.pooled_convolution(x, weight, bias, shape.padding)
    wide = (x.double(), weight.double(), None if bias is None else bias.double(), shape.padding)
    expected = layers(*wide)
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert bool(((found - expected).abs() <= 2e-6 * sizes_of_sums(*wide)).all())
    assert torch.equal(x, kept)


@pytest.mark.usefixtures("implementation")
def test_where_no_number_comes_in_none_goes_out() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = SECOND.x(draw), SECOND.weight(draw)
    for number in (math.nan, math.inf):  # infinity times a weight, less infinity
        for at in ((0, 0, 0, 0), (1, 3, 5, 6), (2, 15, 11, 11)):
            spoiled = x.clone()
            spoiled[at] = number
            if number == math.inf:
                spoiled[at[0], 0, at[2], (at[3] + 1) % 12] = number
            found = ops.pooled_convolution(channels_last(spoiled), weight)
            assert torch.equal(found.isnan(), layers(spoiled, weight, None, 0).isnan())
            if number is math.nan:
                assert found.isnan().any()
    bias = torch.full((16,), math.nan)
    assert ops.pooled_convolution(x, weight, bias).isnan().all()


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_types_are_torchs(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = SECOND.x(draw).to(dtype), SECOND.weight(draw).to(dtype)
    assert torch.equal(ops.pooled_convolution(x, weight), layers(x, weight, None, 0))


@compiled
@pytest.mark.parametrize("shape", [LENET, SECOND, WIDE, PADDED], ids=str)
def test_an_image_has_the_same_bits_in_any_batch_layout_and_number_of_threads(shape: Shape) -> None:
    draw = torch.Generator().manual_seed(0)
    x = shape._replace(images=300).x(draw)
    weight, threads = shape.weight(draw), torch.get_num_threads()
    expected = ops.pooled_convolution(channels_last(x), weight, padding=shape.padding)
    found = [ops.pooled_convolution(part, weight, padding=shape.padding) for part in x.split(7)]
    assert torch.equal(torch.cat(found), expected)
    try:
        torch.set_num_threads(3)
        assert torch.equal(ops.pooled_convolution(x, weight, padding=shape.padding), expected)
    finally:
        torch.set_num_threads(threads)


@compiled
@pytest.mark.parametrize("shape", [LENET, SECOND, WIDE, PADDED], ids=str)
def test_every_instruction_set_that_fuses_gives_the_same_bits(shape: Shape) -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = shape.x(draw), shape.weight(draw), torch.randn(shape.outputs, generator=draw)
    found = [
        torch.ops.fededge.pooled_convolution(x, weight, bias, shape.padding)
        for level in each_level()
        if level not in UNFUSED
    ]
    assert all(torch.equal(one, found[0]) for one in found)


def test_without_fused_arithmetic_torch_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = SECOND.x(draw), SECOND.weight(draw)
    choice = _backend.Choice("cpu", "a test", {"simd": "sse2"})
    monkeypatch.setattr(_backend, "CHOICE", choice)
    assert torch.equal(ops.pooled_convolution(x, weight), layers(x, weight, None, 0))


@compiled
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 5, 9, 9)}, r"x has shape \[2, 5, 9, 9\] and weight \[4, 3, 3, 3\]"),
        ({"x": torch.zeros(3, 9, 9)}, r"x has shape \[3, 9, 9\] and weight"),
        ({"x": torch.zeros(2, 3, 3, 9)}, r"\[2, 3, 3, 9\] leave nothing to pool after a kernel"),
        ({"weight": torch.zeros(0, 3, 3, 3)}, r"weight has shape \[0, 3, 3, 3\], in which there"),
        ({"weight": torch.zeros(4, 3, 3, 3).double()}, "weight is Double, expected Float"),
        ({"bias": torch.zeros(5)}, r"bias has shape \[5\], expected \[4\]"),
        ({"padding": -1}, "the padding is -1, it must be at least 0"),
        ({"padding": 1 << 40}, "the padding is 1099511627776, it must be"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    change: dict[str, Tensor | int], message: str
) -> None:
    fitting = {
        "x": torch.zeros(2, 3, 9, 9),
        "weight": torch.zeros(4, 3, 3, 3),
        "bias": torch.zeros(4),
        "padding": 0,
    }
    with pytest.raises((ValueError, TypeError), match=f"^pooled_convolution: .*{message}"):
        torch.ops.fededge.pooled_convolution(*{**fitting, **change}.values())


@compiled
def test_torch_understands_the_op() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = channels_last(PADDED.x(draw)), PADDED.weight(draw)
    for bias in (None, torch.zeros(7)):
        opcheck(torch.ops.fededge.pooled_convolution.default, (x, weight, bias, 2))
        opcheck(torch.ops.fededge.pooled_convolution_forward.default, (x, weight, bias, 2))


@compiled
def test_it_can_be_part_of_a_compiled_function() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = SECOND.x(draw), SECOND.weight(draw)

    def doubled(x: Tensor) -> Tensor:
        return 2 * ops.pooled_convolution(x, weight, padding=1)

    found = torch.compile(doubled, backend="aot_eager", fullgraph=True, dynamic=True)(x)
    assert torch.equal(found, doubled(x))
