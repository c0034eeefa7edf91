"""FedAdagrad, FedAdam and FedYogi: two rounds by hand, and many against plain loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fededge.errors import MethodError
from fededge.flat import Entry, Layout, as_numpy
from fededge.method.base import Merged
from fededge.methods import method
from tests.merging import Update, merged, update

KINDS = ("fedadagrad", "fedadam", "fedyogi")


def rounds(*means: float) -> list[dict[str, Update]]:
    """Rounds of these means (of 1/4 and 3/4); the running statistics average to 3."""
    return [{"a": update(1, mean - 3, 0.0), "b": update(3, mean + 1, 4.0)} for mean in means]


def test_fedadagrad_by_hand() -> None:
    """τ = 3 (v = 9), β₁ = 1/2, η = 2, w = 0.

    Round 1: Δ = 4,  m = 2,         v = 9 + 16 = 25,     w = 2 · 2/(5 + 3) = 0.5.
    Round 2: Δ = 12, m = 1 + 6 = 7, v = 25 + 144 = 169,  w = 0.5 + 2 · 7/(13 + 3) = 1.375.
    """
    first, second = merged("fedadagrad(eta=2, b1=0.5, tau=3)", (0.0, 9.0), rounds(4, 12.5))
    assert first == pytest.approx([0.5, 3])
    assert second == pytest.approx([1.375, 3])


def test_fedadam_by_hand() -> None:
    """τ = 3 (v = 9), β₁ = β₂ = 1/2, η = 1.2, w = 0.

    Round 1: Δ = 21, m = 10.5,               v = (9 + 441)/2 = 225,   w = 1.2 · 10.5/18 = 0.7.
    Round 2: Δ = 15, m = 5.25 + 7.5 = 12.75, v = (225 + 225)/2 = 225, w = 0.7 + 0.85 = 1.55.
    """
    text = "fedadam(eta=1.2, b1=0.5, b2=0.5, tau=3)"
    first, second = merged(text, (0.0, 9.0), rounds(21, 15.7))
    assert first == pytest.approx([0.7, 3])
    assert second == pytest.approx([1.55, 3])


def test_fedyogi_by_hand() -> None:
    """τ = 3 (v = 9), β₁ = β₂ = 1/2, η = 1, w = 0.

    Round 1: Δ = 12, m = 6,         v = 9 + 144/2 = 81 (it rises), w = 6/(9 + 3) = 0.5.
    Round 2: Δ = 8,  m = 3 + 4 = 7, v = 81 - 64/2 = 49 (it falls), w = 0.5 + 7/(7 + 3) = 1.2.
    """
    text = "fedyogi(eta=1, b1=0.5, b2=0.5, tau=3)"
    first, second = merged(text, (0.0, 9.0), rounds(12, 8.5))
    assert first == pytest.approx([0.5, 3])
    assert second == pytest.approx([1.2, 3])


def reference(kind: str, w: Tensor, means: list[Tensor]) -> Tensor:
    """Algorithm 2 with the paper's constants, coordinate by coordinate in double precision."""
    out = []
    for i, start in enumerate(w.tolist()):
        x, m, v = start, 0.0, 1e-6
        for mean in means:
            d = float(mean[i]) - x
            m = 0.9 * m + 0.1 * d
            if kind == "fedadagrad":
                v = v + d * d
            elif kind == "fedadam":
                v = 0.99 * v + 0.01 * d * d
            elif v > d * d:
                v = v - 0.01 * d * d
            else:
                v = v + 0.01 * d * d
            x = x + 0.01 * m / (v**0.5 + 1e-3)
        out.append(x)
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_many_rounds_with_the_defaults(kind: str) -> None:
    """Changes from 1e-6 to 1, and one coordinate that never moves."""
    draw = torch.Generator().manual_seed(0)
    size, stack = 40, method(kind)
    layout = Layout((Entry("weight", (size,), 0, True),))
    scale = torch.logspace(-6, 0, size)
    w = torch.randn(size, generator=draw)
    w[0] = 0.0
    means = [scale * torch.randn(size, generator=draw) for _ in range(12)]
    for mean in means:
        mean[0] = 0.0
    model, state = as_numpy(w), stack.initial(layout)
    for mean in means:
        model, state = stack.step(model, Merged(as_numpy(mean), {}, 1, layout), state)
    got = torch.from_numpy(model).double()
    assert torch.allclose(got, reference(kind, w, means), rtol=1e-5, atol=1e-6)
    assert model[0] == 0


def test_the_three_differ_only_in_their_second_moment() -> None:
    """From v = τ² and a change of τ, the paper's rules give 2τ², τ² and (Yogi: sign 0) τ²."""
    ends = {
        kind: merged(f"{kind}(eta=1, b1=0, tau=0.5)", (0.0, 0.0), rounds(0.5))[0][0]
        for kind in KINDS
    }
    assert ends["fedadagrad"] == pytest.approx(0.5 / (0.5 * 2**0.5 + 0.5))
    assert ends["fedadam"] == pytest.approx(0.5)
    assert ends["fedyogi"] == pytest.approx(0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_half_beside_it_changes_nothing_at_the_coordinator(kind: str) -> None:
    alone = merged(kind, (0.0, 0.0), rounds(1, 2))
    assert merged(f"fedprox(mu=0.1)+{kind}", (0.0, 0.0), rounds(1, 2)) == alone


def test_the_weights_may_be_another_layers() -> None:
    """FedRS counts every update the same: the mean is 3 instead of 4, and Δ = 3."""
    first = merged("fedrs+fedadagrad(eta=1, b1=0, tau=4)", (0.0, 0.0), rounds(4))[0]
    assert first == pytest.approx([3 / (5 + 4), 2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("eta=0", "eta must be above 0"),
        ("b1=1", "b1 must lie from 0 to below 1"),
        ("tau=0", "tau must be above 0"),
        ("b2=1", "b2 must lie from 0 to below 1"),
    ],
)
def test_bad_options_are_refused(kind: str, option: str, rule: str) -> None:
    if (kind, option) == ("fedadagrad", "b2=1"):
        rule = "method 'fedadagrad' has no option 'b2'"
    with pytest.raises(MethodError, match=rule):
        method(f"{kind}({option})")
