"""Step, moving average and ALA on flat vectors, against float64 arithmetic and torch.optim."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fededge import ops
from fededge.errors import LayoutError, MethodError
from tests.ops.inputs import GRAIN, SEEDS, SIZES, many, vectors

pytestmark = pytest.mark.usefixtures("implementation")


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


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


@many
@given(SIZES, SEEDS, st.floats(0, 2))
def test_ala_step_is_its_two_formulas(size: int, seed: int, eta: float) -> None:
    noise, mixed, g, local, received = vectors(size, seed, 5)
    W = noise.sigmoid()
    change = received.double() - local.double()
    expected = (W.double() - eta * g.double() * change).clamp(0, 1)
    ops.ala_step_(W, mixed, g, local, received, eta=eta)
    torch.testing.assert_close(W.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        mixed.double(), local.double() + change * expected, atol=5e-5, rtol=0
    )


def test_ala_step_worked_by_hand() -> None:
    """L=1, G=3, so that G-L=2. W=0.5, g=0.1, eta=2: W=0.5-2*0.1*2=0.1, mixed=1+2*0.1=1.2.

    W=0.5 with g=1 would be -3.5, clipped to 0: mixed=L; with g=-1 it is 4.5, clipped to 1: mixed=G.
    """
    W, mixed = torch.full((3,), 0.5), torch.zeros(3)
    g, local, received = torch.tensor([0.1, 1.0, -1.0]), torch.ones(3), torch.full((3,), 3.0)
    ops.ala_step_(W, mixed, g, local, received, eta=2.0)
    torch.testing.assert_close(W, torch.tensor([0.1, 0.0, 1.0]))
    torch.testing.assert_close(mixed, torch.tensor([1.2, 1.0, 3.0]))


def test_ala_step_does_not_hide_a_gradient_that_is_not_a_number() -> None:
    W, mixed, one = torch.ones(1), torch.zeros(1), torch.ones(1)
    ops.ala_step_(W, mixed, torch.tensor([math.nan]), one, 2 * one, eta=1.0)
    assert torch.isnan(W).all()
    assert torch.isnan(mixed).all()


def everything(size: int) -> list[Tensor]:
    """All ops on the same seeded vectors: what they changed."""
    w, g, buffer, anchor, bias, target, source, W, mixed = vectors(size, 3, 9)
    ops.ema_(target, source, 0.7)
    ops.ala_step_(W, mixed, g, source, anchor, eta=0.3)
    for _ in range(3):
        ops.sgd_step_(w, g, buffer, lr=0.1, momentum=0.9, kappa=0.2, anchor=anchor, bias=bias)
    return [target, W, mixed, w, buffer]


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


def ala_step_with(name: str, vector: Tensor) -> None:
    names = ("W", "mixed", "grad", "local", "received")
    ops.ala_step_(**{n: torch.zeros(4) for n in names} | {name: vector}, eta=1.0)


WRONG: list[tuple[str, Tensor, str]] = [
    ("type", torch.zeros(4, dtype=torch.float64), "is torch.float64, it must be torch.float32"),
    ("shape", torch.zeros(2, 2), r"has shape \(2, 2\), it must be a flat vector"),
    ("length", torch.zeros(5), "has 5 elements, expected 4"),
    ("stride", torch.zeros(8)[::2], r"is not contiguous \(stride 2\)"),
    ("device", torch.zeros(4, device="meta"), "is on meta, expected cpu"),
    ("graph", torch.zeros(4, requires_grad=True), "requires a gradient"),
]
CALLS: list[tuple[str, Callable[[Tensor], None]]] = [
    *[
        (f"ala_step_: {name}", lambda bad, name=name: ala_step_with(name, bad))
        for name in ("mixed", "grad", "local", "received")
    ],
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
