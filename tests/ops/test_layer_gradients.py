"""The gradients of a fused convolution, against float64 autograd of torch's layers.

Where two of the four numbers that are pooled are nearly equal, rounding decides which of them has
the gradient. So images and weights are small integers: the convolution is exact, and ties are many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.library import opcheck
from torch.nn.grad import conv2d_input, conv2d_weight

from fededge import ops
from fededge.models.precision import channels_last
from fededge.ops import _backend
from tests.ops.images import LAYOUTS, LENET, PADDED, SECOND, SHAPES, WIDE, Shape, layers
from tests.ops.inputs import many
from tests.ops.levels import UNFUSED, each_level

compiled = pytest.mark.skipif(_backend.CHOICE.name != "cpu", reason=_backend.CHOICE.reason)

Layer = Callable[[Tensor, Tensor, Tensor | None, int], Tensor]

TALL = Shape(3, 2, 5, (7, 1), (6, 4), 0)
FIXED = [LENET, SECOND, WIDE, PADDED, TALL]
SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    **LAYOUTS,
    "all the same": lambda slope: slope.new_tensor(0.7).expand_as(slope),
    "some of none": lambda slope: slope * (slope > 0),
}


class Inputs(NamedTuple):
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    padding: int

    def tensors(self) -> list[Tensor]:
        return [self.x, self.weight] if self.bias is None else [self.x, self.weight, self.bias]

    def leaves(self, needed: tuple[bool, ...] = (True, True, True)) -> Inputs:
        """Others with the same values and layout, of which these need a gradient."""
        pairs = zip(self.tensors(), needed, strict=False)
        x, weight, *bias = (tensor.detach().requires_grad_(wanted) for tensor, wanted in pairs)
        return Inputs(x, weight, bias[0] if bias else None, self.padding)

    def double(self) -> Inputs:
        x, weight, *bias = (tensor.double() for tensor in self.tensors())
        return Inputs(x, weight, bias[0] if bias else None, self.padding)

    def gradients(self) -> list[Tensor | None]:
        return [tensor.grad for tensor in self.tensors()]


def integers(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randint(-3, 4, like.shape, generator=draw).float()


def inputs(shape: Shape, biased: bool = True, seed: int = 0) -> Inputs:
    draw = torch.Generator().manual_seed(seed)
    x, weight = integers(shape.x(draw), draw), integers(shape.weight(draw), draw)
    bias = integers(torch.empty(2 * shape.outputs), draw)[::2] if biased else None
    return Inputs(x, weight, bias, shape.padding)


def slopes_for(given: Inputs, seed: int = 0) -> Tensor:
    """A gradient to begin with."""
    shape = layers(*given).shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(layer: Layer, given: Inputs, slopes: Tensor) -> list[Tensor | None]:
    leaves = given.leaves()
    layer(*leaves).backward(slopes)
    return leaves.gradients()


def same(found: list[Tensor | None], expected: list[Tensor | None]) -> bool:
    return all(
        a is b if a is None or b is None else torch.equal(a, b)
        for a, b in zip(found, expected, strict=True)
    )


def sizes_of_sums(given: Inputs, slopes: Tensor) -> list[Tensor]:
    """The scale of each gradient's rounding error: the sum of its absolute terms."""
    x, weight, bias, padding = given
    leaf = torch.nn.functional.conv2d(x, weight, bias, padding=padding).requires_grad_()
    torch.nn.functional.max_pool2d(leaf, 2).relu().backward(slopes)
    assert leaf.grad is not None
    of_map = leaf.grad.abs()
    return [
        conv2d_input(x.shape, weight.abs(), of_map, padding=padding),
        conv2d_weight(x.abs(), weight.shape, of_map, padding=padding),
        of_map.sum((0, 2, 3)),
    ]


@pytest.mark.usefixtures("implementation")
@many
@given(
    SHAPES,
    st.sampled_from(list(LAYOUTS)),
    st.sampled_from(list(SLOPES)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
@example(LENET, "channels last", "channels last", True, True, 0)
@example(SECOND, "channels last", "all the same", True, False, 0)
@example(WIDE, "channels first", "channels first", False, False, 0)
@example(PADDED, "columns first", "every other image", True, True, 0)
@example(TALL, "rows apart", "some of none", True, True, 0)
@example(PADDED._replace(images=0), "channels last", "channels last", True, True, 0)
@example(PADDED._replace(images=37), "channels last", "channels last", True, True, 0)
def test_the_layers_gradients_in_float64(
    shape: Shape, layout: str, slope_layout: str, biased: bool, weight_last: bool, seed: int
) -> None:
    given = inputs(shape, biased, seed)
    sides = [
        s + 2 * shape.padding - k for s, k in zip(given.x.shape[2:], shape.kernel, strict=True)
    ]
    if min(sides) < 1:
        return  # nothing to pool
    weight = channels_last(given.weight) if weight_last else given.weight
    given = given._replace(x=LAYOUTS[layout](given.x), weight=weight)
    slopes = SLOPES[slope_layout](slopes_for(given, seed))
    found = gradients(ops.pooled_convolution, given, slopes)
    wide, wide_slopes = given.double(), slopes.double()
    expected = gradients(layers, wide, wide_slopes)
    assert len(found) == len(expected) == 2 + biased
    for mine, theirs, size in zip(found, expected, sizes_of_sums(wide, wide_slopes), strict=False):
        assert mine is not None
        assert theirs is not None
        assert mine.dtype == torch.float32
        assert mine.shape == theirs.shape
        assert bool(((mine - theirs).abs() <= 2e-6 * size).all())


@compiled
@pytest.mark.parametrize("shape", FIXED, ids=str)
def test_with_a_gradient_the_output_has_the_same_bits(shape: Shape) -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = shape.x(draw), shape.weight(draw)
    plain = ops.pooled_convolution(x, weight, None, shape.padding)
    found = ops.pooled_convolution(x, weight.requires_grad_(), None, shape.padding)
    assert found.requires_grad
    assert torch.equal(found, plain)
    assert found.stride() == plain.stride()


@compiled
def test_zeros_of_either_sign_come_out_alike() -> None:
    x = torch.tensor([[0.0, -0.0], [-0.0, 0.0]])[None, None]
    weight = torch.ones(1, 1, 1, 1)
    for turned in (x, -x, x.flip(3)):
        plain = ops.pooled_convolution(turned, weight)
        found = ops.pooled_convolution(turned, weight.clone().requires_grad_())
        assert torch.equal(found.signbit(), plain.signbit())


@pytest.mark.usefixtures("implementation")
def test_the_first_of_equal_maxima_has_the_gradient_and_without_a_positive_one_none_has() -> None:
    """A 1x1 kernel of 1: the map is the image, and so is the place of its gradient."""
    x = torch.tensor([[5.0, 5, 1, 2, 0, -1], [5, 5, 2, 1, -1, 0]])[None, None].requires_grad_()
    weight, bias = torch.ones(1, 1, 1, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    ops.pooled_convolution(x, weight, bias).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[[[1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]]]]
    assert weight.grad == 7
    assert bias.grad == 2


@pytest.mark.usefixtures("implementation")
def test_a_map_below_zero_has_no_gradient() -> None:
    given = inputs(SECOND)._replace(bias=torch.full((16,), -1e6))
    for found in gradients(ops.pooled_convolution, given, slopes_for(given)):
        assert found is not None
        assert not found.any()


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("at", [(0, 0, 0, 0), (1, 3, 5, 6), (2, 15, 11, 11)])
def test_nan_has_the_gradient_that_torch_computes(at: tuple[int, ...]) -> None:
    """By the image it is one, as the weights are numbers; by the weights it is none."""
    given = inputs(SECOND)
    given.x[at] = math.nan
    slopes = slopes_for(given).round() + 0.5
    found = gradients(ops.pooled_convolution, given, slopes)
    expected = gradients(layers, given, slopes)
    assert same(found[::2], expected[::2])
    assert found[1] is not None
    assert bool(found[1].isnan().flatten(1).any(1).all())  # in every output channel


@compiled
def test_an_infinite_gradient_stays_within_its_patch() -> None:
    """Where registers reach beyond its rows of nine numbers, nothing is added."""
    given = inputs(Shape(2, 3, 4, (3, 3), (6, 8), 0))._replace(bias=torch.full((4,), 1e3))
    slopes = torch.zeros_like(slopes_for(given))
    slopes[0, 1, 0, 1] = math.inf  # of the map's upper rows, columns 2 and 3
    of_x = gradients(ops.pooled_convolution, given, slopes)[0]
    assert of_x is not None
    assert bool((of_x != 0).any())
    of_x[0, :, :4, 2:6] = 0
    assert not of_x.any()


@compiled
@pytest.mark.parametrize("shape", [SECOND, PADDED], ids=str)
@pytest.mark.parametrize(
    "needed", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_only_what_is_asked_for_is_computed(shape: Shape, needed: tuple[bool, ...]) -> None:
    given = inputs(shape)
    slopes = slopes_for(given)
    expected = gradients(ops.pooled_convolution, given, slopes)
    leaves = given.leaves(needed)
    ops.pooled_convolution(*leaves).backward(slopes)
    kept = [one if wanted else None for one, wanted in zip(expected, needed, strict=True)]
    assert same(leaves.gradients(), kept)


@compiled
@pytest.mark.parametrize("shape", FIXED, ids=str)
def test_any_layout_and_number_of_threads_gives_the_same_bits(shape: Shape) -> None:
    draw, threads = torch.Generator().manual_seed(0), torch.get_num_threads()
    many_images = shape._replace(images=150)
    given = Inputs(many_images.x(draw), shape.weight(draw), None, shape.padding)
    slopes = slopes_for(given)
    expected = gradients(ops.pooled_convolution, given, slopes)
    assert same(gradients(ops.pooled_convolution, given, slopes), expected)
    last = Inputs(channels_last(given.x), channels_last(given.weight), None, shape.padding)
    assert same(gradients(ops.pooled_convolution, last, channels_last(slopes)), expected)
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            assert same(gradients(ops.pooled_convolution, given, slopes), expected)
    finally:
        torch.set_num_threads(threads)


@compiled
@pytest.mark.parametrize("shape", FIXED, ids=str)
def test_every_instruction_set_that_fuses_gives_the_same_bits(shape: Shape) -> None:
    draw = torch.Generator().manual_seed(0)
    bias = torch.randn(shape.outputs, generator=draw)
    given = Inputs(shape.x(draw), shape.weight(draw), bias, shape.padding)
    slopes = slopes_for(given)
    found = [
        gradients(torch.ops.fededge.pooled_convolution, given, slopes)
        for level in each_level()
        if level not in UNFUSED
    ]
    assert all(same(one, found[0]) for one in found)


def test_without_fused_arithmetic_the_gradient_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backend, "CHOICE", _backend.Choice("cpu", "a test", {"simd": "sse2"}))
    given = inputs(SECOND)
    slopes = slopes_for(given)
    assert same(gradients(ops.pooled_convolution, given, slopes), gradients(layers, given, slopes))


@compiled
def test_a_second_derivative_is_refused() -> None:
    """Also by what only the gradient depends on."""
    for by in range(3):
        leaves = inputs(PADDED).leaves()
        loss = ops.pooled_convolution(*leaves).square().sum()
        (found,) = torch.autograd.grad(loss, leaves.tensors()[by], create_graph=True)
        with pytest.raises(RuntimeError, match=r"^pooled_convolution .* has no second derivative"):
            found.sum().backward()


@compiled
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, for jvp
def test_a_derivative_by_forward_mode_is_refused() -> None:
    x, weight, bias, padding = inputs(PADDED)
    with pytest.raises(RuntimeError, match="pooled_convolution has no forward-mode derivative"):
        torch.func.jvp(lambda x: ops.pooled_convolution(x, weight, bias, padding), (x,), (x,))


@compiled
@pytest.mark.parametrize("changed", [0, 1])
def test_a_tensor_that_was_changed_in_place_is_noticed(changed: int) -> None:
    leaves = inputs(PADDED).leaves()
    out = ops.pooled_convolution(*leaves).sum()
    with torch.no_grad():
        leaves.tensors()[changed].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@compiled
def test_a_graph_can_be_kept_or_is_gone() -> None:
    given = inputs(PADDED)
    slopes, leaves = slopes_for(given), given.leaves()
    out = ops.pooled_convolution(*leaves)
    expected = torch.autograd.grad(out, leaves.tensors(), slopes, retain_graph=True)
    out.backward(slopes)
    assert same(leaves.gradients(), list(expected))
    with pytest.raises(RuntimeError, match="a second time"):
        out.backward(slopes)


@compiled
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gradient": torch.zeros(1)}, r"gradient has shape \[1\], expected \[2, 4, 3, 3\]"),
        ({"gradient": torch.zeros(2, 4, 3, 3).double()}, "gradient is Double, expected Float"),
        ({"where": torch.zeros(2, 4, 3, 3)}, "where has shape .* and is Float on cpu, expected"),
        ({"where": torch.zeros(2, 4, 3, 2).byte()}, r"where has shape \[2, 4, 3, 2\] and is Byte"),
        ({"x": torch.zeros(3, 9, 9)}, r"x has shape \[3, 9, 9\] and weight"),
        ({"padding": -1}, "the padding is -1, it must be at least 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    change: dict[str, Tensor | int], message: str
) -> None:
    fitting = {
        "gradient": torch.zeros(2, 4, 3, 3),
        "where": torch.zeros(2, 4, 3, 3, dtype=torch.uint8),
        "x": torch.zeros(2, 3, 9, 9),
        "weight": torch.zeros(4, 3, 3, 3),
        "padding": 0,
        "needed": [True, True, True],
    }
    with pytest.raises((ValueError, TypeError), match=f"^pooled_convolution: .*{message}"):
        torch.ops.fededge.pooled_convolution_backward(*{**fitting, **change}.values())


@compiled
def test_places_that_are_none_have_no_gradient() -> None:
    where = torch.tensor([0, 4, 5, 255], dtype=torch.uint8).view(1, 1, 1, 4)
    x, weight = torch.ones(1, 1, 2, 8), torch.ones(1, 1, 1, 1)
    (of_x, of_weight, of_bias) = torch.ops.fededge.pooled_convolution_backward(
        torch.ones(1, 1, 1, 4), where, x, weight, 0, [True, True, True]
    )
    assert of_x.flatten().tolist() == [1] + 15 * [0]
    assert of_weight == of_bias == 1


@compiled
# opcheck's own copies of the arguments are no leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("needed", [(False, True, True), (True, True, True)])
def test_torch_understands_the_gradient(needed: tuple[bool, ...]) -> None:
    x, weight, _, padding = inputs(PADDED)
    given = Inputs(channels_last(x), weight, torch.ones(7), padding)
    opcheck(torch.ops.fededge.pooled_convolution.default, tuple(given.leaves(needed)))
    _, where = torch.ops.fededge.pooled_convolution_forward(*given)
    backward = (slopes_for(given), where, given.x, weight, padding, list(needed))
    opcheck(torch.ops.fededge.pooled_convolution_backward.default, backward)


@compiled
def test_its_gradient_can_be_part_of_a_compiled_function() -> None:
    def doubled(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
        return 2 * ops.pooled_convolution(x, weight, bias, padding)

    given = inputs(SECOND)
    quick = torch.compile(doubled, backend="aot_eager", fullgraph=True, dynamic=True)
    slopes = slopes_for(given)
    assert same(gradients(quick, given, slopes), gradients(doubled, given, slopes))


@compiled
def test_functional_gradients_are_the_same() -> None:
    x, weight, bias, padding = inputs(PADDED)

    def loss(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.pooled_convolution(x, weight, bias, padding).square().sum()

    leaves = Inputs(x, weight, bias, padding).leaves()
    assert bias is not None
    found = torch.func.grad(loss, argnums=(0, 1, 2))(x, weight, bias)
    loss(*leaves.tensors()).backward()
    assert same(list(found), leaves.gradients())
