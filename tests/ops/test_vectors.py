"""The flat-vector ops, compiled and pure torch, against float64 arithmetic and torch.optim."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fededge import ops
from fededge.errors import LayoutError, MethodError
from fededge.ops import _backend

pytestmark = pytest.mark.usefixtures("implementation")

GRAIN = (_backend.CHOICE.build or {}).get("grain", 32768)
SIZES = st.one_of(
    st.sampled_from([0, 1, 7, 64, GRAIN - 1, GRAIN, GRAIN + 1, 3 * GRAIN + 5]),
    st.integers(0, 300),
)
SEEDS = st.integers(0, 2**31 - 1)
# The implementation is chosen once for all examples of a test: that is what is wanted.
many = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def vectors(size: int, seed: int, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for _ in range(count)]


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@many
@given(SIZES, SEEDS, st.floats(-100, 100))
def test_accumulate_in_double_is_exact_to_the_last_bits(
    size: int, seed: int, weight: float
) -> None:
    start, x = vectors(size, seed, 2)
    acc = start.double()
    ops.accumulate_(acc, x, weight)
    torch.testing.assert_close(acc, start.double() + weight * x.double(), rtol=0, atol=1e-12)


@many
@given(SIZES, SEEDS, st.floats(-10, 10))
def test_accumulate_in_single_rounds_like_float32(size: int, seed: int, weight: float) -> None:
    acc, x = vectors(size, seed, 2)
    expected = acc.double() + weight * x.double()
    ops.accumulate_(acc, x, weight)
    torch.testing.assert_close(acc.double(), expected, rtol=1e-6, atol=1e-5)


def test_accumulate_keeps_in_double_what_single_would_lose() -> None:
    """2**24 + 1 has no float32: a float32 sum of ones would stop growing there."""
    acc = torch.full((3,), 2.0**24, dtype=torch.float64)
    ops.accumulate_(acc, torch.ones(3), 1.0)
    assert acc.tolist() == [2.0**24 + 1] * 3


@many
@given(SIZES, SEEDS, st.floats(0, 1))
def test_ema_moves_towards_the_source(size: int, seed: int, mu: float) -> None:
    target, source = vectors(size, seed, 2)
    expected = mu * target.double() + (1 - mu) * source.double()
    ops.ema_(target, source, mu)
    torch.testing.assert_close(target.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("mu", "expected"), [(1.0, [1.0, 2.0]), (0.0, [3.0, 5.0])])
def test_ema_keeps_or_replaces_at_the_ends(mu: float, expected: list[float]) -> None:
    target = torch.tensor([1.0, 2.0])
    ops.ema_(target, torch.tensor([3.0, 5.0]), mu)
    assert target.tolist() == expected


def sgd_by_hand(w: Tensor, g: Tensor, k: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """The formula of the docstring in float64, element by element of the specification."""
    w64, step, buffer = w.double(), g.double(), k["momentum_buffer"]
    step = step + k["weight_decay"] * w64
    if k["anchor"] is not None:
        step = step + k["kappa"] * (w64 - k["anchor"].double())
    if k["bias"] is not None:
        step = step + k["bias"].double()
    if buffer is not None:
        step = k["momentum"] * buffer.double() + step
    moved = w64 - k["lr"] * step
    if k["mask"] is None:
        return moved, step if buffer is not None else None
    stays = k["mask"] == 0
    kept = None if buffer is None else torch.where(stays, buffer.double(), step)
    return torch.where(stays, w64, moved), kept


@many
@given(SIZES, SEEDS, st.tuples(*[st.booleans()] * 4), st.floats(0, 1), st.floats(0, 2))
def test_sgd_step_is_its_formula_with_any_set_of_vectors(
    size: int, seed: int, there: tuple[bool, ...], lr: float, kappa: float
) -> None:
    w, g, buffer, anchor, bias, noise = vectors(size, seed, 6)
    k: dict[str, Any] = {
        "momentum_buffer": buffer if there[0] else None,
        "anchor": anchor if there[1] else None,
        "bias": bias if there[2] else None,
        "mask": (noise > 0).float() if there[3] else None,
        "lr": lr,
        "momentum": 0.9 if there[0] else 0.0,
        "weight_decay": 0.01,
        "kappa": kappa if there[1] else 0.0,
    }
    expected_w, expected_buffer = sgd_by_hand(w, g, k)
    ops.sgd_step_(w, g, **k)
    torch.testing.assert_close(w.double(), expected_w, rtol=1e-5, atol=1e-5)
    if expected_buffer is not None:
        torch.testing.assert_close(buffer.double(), expected_buffer, rtol=1e-5, atol=1e-5)


def test_sgd_step_worked_by_hand() -> None:
    """w=2, grad=1, wd=0.5, kappa=3, anchor=1, bias=-1, buffer=4, momentum=0.25, lr=0.5.

    g = 1 + 0.5*2 + 3*(2-1) - 1 = 4; buffer = 0.25*4 + 4 = 5; w = 2 - 0.5*5 = -0.5.
    """
    w, buffer = torch.tensor([2.0]), torch.tensor([4.0])
    ops.sgd_step_(
        w,
        torch.tensor([1.0]),
        buffer,
        lr=0.5,
        momentum=0.25,
        weight_decay=0.5,
        kappa=3.0,
        anchor=torch.tensor([1.0]),
        bias=torch.tensor([-1.0]),
    )
    assert (w.item(), buffer.item()) == (-0.5, 5.0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_sgd_step_follows_torch_optim_for_many_steps(momentum: float, weight_decay: float) -> None:
    start, *gradients = vectors(1003, 1, 11)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=momentum, weight_decay=weight_decay)
    w, buffer = start.clone(), torch.zeros_like(start) if momentum else None
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        ops.sgd_step_(w, gradient, buffer, lr=0.1, momentum=momentum, weight_decay=weight_decay)
    torch.testing.assert_close(w, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_masked_elements_stay_whatever_their_gradient_is() -> None:
    """Running statistics have no gradient: even rubbish in its place must not reach them."""
    w, buffer = torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0])
    grad, mask = torch.tensor([math.nan, 1.0]), torch.tensor([0.0, 1.0])
    ops.sgd_step_(w, grad, buffer, lr=1.0, momentum=0.5, weight_decay=0.1, mask=mask)
    assert (w[0].item(), buffer[0].item()) == (1.0, 2.0)
    assert w[1].item() == pytest.approx(-1.1)


def everything(size: int) -> list[Tensor]:
    """All ops on the same seeded vectors: what they changed."""
    acc, w, g, buffer, anchor, bias, target, source = vectors(size, 3, 8)
    wide = acc.double()
    ops.accumulate_(acc, g, 0.3)
    ops.accumulate_(wide, g, 0.3)
    ops.ema_(target, source, 0.7)
    for _ in range(3):
        ops.sgd_step_(w, g, buffer, lr=0.1, momentum=0.9, kappa=0.2, anchor=anchor, bias=bias)
    return [acc, wide, target, w, buffer]


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_every_run_gives_the_same_bits(threads: int) -> None:
    size = 4 * GRAIN + 3
    assert same_bits(everything(size), everything(size))


def test_threads_do_not_change_the_bits(threads: int) -> None:
    """More elements than a thread's share, so that two threads really are used."""
    several = everything(4 * GRAIN + 3)
    torch.set_num_threads(1)
    assert same_bits(several, everything(4 * GRAIN + 3))


WRONG: list[tuple[str, Tensor, str]] = [
    ("type", torch.zeros(4, dtype=torch.float16), "is torch.float16, it must be torch.float32"),
    ("shape", torch.zeros(2, 2), r"has shape \(2, 2\), it must be a flat vector"),
    ("length", torch.zeros(5), "has 5 elements, expected 4"),
    ("stride", torch.zeros(8)[::2], r"is not contiguous \(stride 2\)"),
    ("device", torch.zeros(4, device="meta"), "is on meta, expected cpu"),
    ("graph", torch.zeros(4, requires_grad=True), "requires a gradient"),
]
CALLS: list[tuple[str, Callable[[Tensor], None]]] = [
    ("accumulate_: x", lambda bad: ops.accumulate_(torch.zeros(4), bad, 1.0)),
    ("ema_: source", lambda bad: ops.ema_(torch.zeros(4), bad, 0.5)),
    ("sgd_step_: grad", lambda bad: ops.sgd_step_(torch.zeros(4), bad, lr=0.1)),
    *[
        (
            f"sgd_step_: {name}",
            lambda bad, name=name: ops.sgd_step_(
                torch.zeros(4), torch.zeros(4), lr=0.1, **{name: bad}
            ),
        )
        for name in ("momentum_buffer", "anchor", "bias", "mask")
    ],
]


@pytest.mark.parametrize(("where", "call"), CALLS, ids=[name for name, _ in CALLS])
@pytest.mark.parametrize(("bad", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_vector_is_named_with_what_it_is(
    where: str, call: Callable[[Tensor], None], bad: Tensor, message: str
) -> None:
    with pytest.raises(LayoutError, match=f"^{where} {message}"):
        call(bad)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay", "kappa"])
def test_a_number_that_is_not_finite_is_refused(name: str, number: float) -> None:
    v = torch.zeros(3)
    numbers: dict[str, Any] = {"lr": 0.1, name: number}
    with pytest.raises(MethodError, match=f"{name} is {number}, it must be a finite number"):
        ops.sgd_step_(v, v.clone(), v.clone(), anchor=v.clone(), **numbers)


@pytest.mark.parametrize("mu", [-0.1, 1.1, math.nan])
def test_ema_refuses_a_share_outside_its_range(mu: float) -> None:
    with pytest.raises(MethodError, match=f"mu is {mu}, it must lie between 0 and 1"):
        ops.ema_(torch.zeros(1), torch.zeros(1), mu)


def test_momentum_needs_its_buffer_and_kappa_its_anchor() -> None:
    v = torch.zeros(3)
    with pytest.raises(MethodError, match=r"momentum is 0\.9 but there is no momentum_buffer"):
        ops.sgd_step_(v, v.clone(), lr=0.1, momentum=0.9)
    with pytest.raises(MethodError, match=r"kappa is 0\.5 but there is no anchor"):
        ops.sgd_step_(v, v.clone(), lr=0.1, kappa=0.5)


def test_changes_are_counted_for_autograd() -> None:
    """A backward pass that saved the old values must fail instead of using the new ones."""
    w = torch.ones(3)
    leaf = torch.ones(3, requires_grad=True)
    product = (leaf * w).sum()
    ops.ema_(w, torch.zeros(3), 0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
