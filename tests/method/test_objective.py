"""Losses and pulls are sums: each kind against its closed form, and two layers against both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.method.base import Affine, Objective, Output
from fededge.method.objective import forward
from fededge.models.base import Classifier

B, C = 5, 4
DRAW = torch.Generator().manual_seed(3)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


Z, ADDED, ROW, TABLE = normal(B, C), normal(B, C), normal(C), normal(C, C)
SCALE = torch.rand(C, generator=DRAW, dtype=torch.float64) + 0.5
Y = torch.tensor([0, 3, 1, 1, 2])
HOT = F.one_hot(Y, C).double()


def loss_and_gradient(objective: Objective) -> tuple[float, Tensor]:
    z = Z.clone().requires_grad_()
    loss = objective.loss(Output(z, z), Y)
    return float(loss.detach()), torch.autograd.grad(loss, z)[0]


def by_hand(z: Tensor) -> float:
    """The mean of -log(e^z_y / sum e^z), row by row."""
    return float(sum(-(row[y] - row.exp().sum().log()) for row, y in zip(z, Y, strict=True)) / B)


def squares(out: Output, y: Tensor) -> Tensor:
    return 0.25 * out.logits.square().sum(1).mean()


def chosen(out: Output, y: Tensor) -> Tensor:
    return out.logits.gather(1, y[:, None]).mean()


@pytest.mark.parametrize(
    ("objective", "z", "slope"),
    [
        (Objective(), Z, torch.ones(C)),
        (Objective(scale=SCALE), SCALE * Z, SCALE),
        (Objective(shift=ROW), Z + ROW, torch.ones(C)),
        (Objective(shift=TABLE), Z + TABLE[Y], torch.ones(C)),
        (Objective(added=ADDED), Z + ADDED, torch.ones(C)),
        (Objective(added=ADDED, added_scale=SCALE), Z + SCALE * ADDED, torch.ones(C)),
        (Objective(1.0, SCALE, TABLE, ADDED), SCALE * Z + ADDED + TABLE[Y], SCALE),
    ],
)
def test_the_loss_and_its_gradient_have_their_closed_form(
    objective: Objective, z: Tensor, slope: Tensor
) -> None:
    """dz = slope · (softmax(scale z + added + shift) - Y) / B."""
    loss, gradient = loss_and_gradient(objective)
    assert loss == pytest.approx(by_hand(z))
    assert torch.allclose(gradient, slope * (z.softmax(1) - HOT) / B)


def test_weight_and_terms() -> None:
    """0.5 · CE + 0.25 · mean ‖z‖² + mean z_y."""
    loss, gradient = loss_and_gradient(Objective(weight=0.5, terms=(squares, chosen)))
    norm, own = float(Z.square().sum()) / B, float((Z * HOT).sum()) / B
    assert loss == pytest.approx(0.5 * by_hand(Z) + 0.25 * norm + own)
    assert torch.allclose(gradient, (0.5 * (Z.softmax(1) - HOT) + 0.5 * Z + HOT) / B)


def test_a_weight_of_zero_leaves_the_loss_to_the_terms() -> None:
    """Even where cross entropy itself would be infinite."""
    away = Objective(weight=0.0, shift=torch.full((C,), torch.inf), terms=(squares,))
    loss, gradient = loss_and_gradient(away)
    assert loss == pytest.approx(0.25 * float(Z.square().sum()) / B)
    assert torch.allclose(gradient, 0.5 * Z / B)
    assert loss_and_gradient(Objective(weight=0.0))[0] == 0.0


def test_plain_is_cross_entropy() -> None:
    z = Z.float()
    torch.testing.assert_close(Objective().loss(Output(z, z), Y), F.cross_entropy(z, Y))


def test_two_at_once_are_one_of_both() -> None:
    """Weights and scales multiply, shifts (a row and a table) and added logits sum, terms join."""
    one = Objective(0.5, SCALE, ROW, ADDED, (squares,))
    two = Objective(0.4, 2 * SCALE, TABLE, 3 * ADDED, (chosen,))
    z = 2 * SCALE.square() * Z + 4 * ADDED + ROW + TABLE[Y]
    expected = 0.2 * by_hand(z) + 0.25 * float(Z.square().sum()) / B + float((Z * HOT).sum()) / B
    for both in (one + two, two + one, Objective() + one + Objective() + two):
        assert loss_and_gradient(both)[0] == pytest.approx(expected)


def test_added_logits_keep_their_own_scale() -> None:
    """Alone in a composition, and beside others that have another scale or none."""
    scaled, plainly = Objective(added=ADDED, added_scale=SCALE), Objective(added=2 * ADDED)
    for both in (scaled + Objective(), Objective() + scaled):
        assert both.added is ADDED
        assert loss_and_gradient(both)[0] == pytest.approx(by_hand(Z + SCALE * ADDED))
    for both in (scaled + plainly, plainly + scaled):
        assert loss_and_gradient(both)[0] == pytest.approx(by_hand(Z + (SCALE + 2) * ADDED))


def test_flattening_and_targets_add_up_with_any_shift() -> None:
    """A table with its factor, and another layer's row without one, are one table."""
    target = normal(B, C).softmax(1)
    one = Objective(0.5, shift=TABLE, factor=TABLE.exp(), flat=0.75)
    two = Objective(shift=ROW, target=0.25 * target, flat=0.25)
    z = Z + TABLE[Y] + ROW
    spread = loss_and_gradient(Objective(0.0, flat=1.0))[0]
    softly = float((target * (z.exp().sum(1).log()[:, None] - z)).sum(1).mean())
    for both in (one + two, two + one):
        loss, gradient = loss_and_gradient(both)
        assert loss == pytest.approx(0.5 * by_hand(z) + 0.25 * softly + spread)
        flatly = loss_and_gradient(Objective(0.0, flat=1.0))[1]
        rest = (0.75 * z.softmax(1) - 0.5 * HOT - 0.25 * target) / B
        assert torch.allclose(gradient, rest + flatly)
    alone = (one + Objective()).factor
    assert alone is one.factor


def test_a_mixture_is_each_labelling_by_its_share() -> None:
    """With terms, and with more labellings than one call of the op takes."""
    objective = Objective(0.5, shift=TABLE, factor=TABLE.exp(), flat=1.0, terms=(chosen,))
    out = Output(Z, Z)
    parts = [(Y, 0.1), (Y.flip(0), 0.2), (Y.roll(1), 0.7)]
    expected = sum(share * float(objective.loss(out, y)) for y, share in parts)
    assert float(objective.mixed(out, parts)) == pytest.approx(expected)


def pulled(affine: Affine, w: Tensor) -> Tensor:
    g = torch.zeros_like(w)
    if affine.anchor is not None:
        g = g + affine.kappa * (w - affine.anchor)
    return g if affine.bias is None else g + affine.bias


A1, A2, B1, W = normal(6), normal(6), normal(6), normal(6)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (Affine(0.3, A1), Affine(0.7, A2)),
        (Affine(0.3, A1), Affine(0.7, A1)),
        (Affine(0.3, A1, B1), Affine(bias=A2)),
        (Affine(bias=B1), Affine(2.0, A2, A1)),
        (Affine(1.0, A1), Affine(-1.0, A2, B1)),
        (Affine(), Affine()),
    ],
)
def test_two_pulls_are_the_sum_of_both(one: Affine, two: Affine) -> None:
    expected = pulled(one, W) + pulled(two, W)
    assert torch.allclose(pulled(one + two, W), expected)
    assert torch.allclose(pulled(two + one, W), expected)


def test_pulls_leave_their_parts_as_they_were() -> None:
    parts = [A1.clone(), A2.clone(), B1.clone()]
    _ = Affine(0.3, A1, B1) + Affine(0.7, A2, B1)
    assert all(torch.equal(a, b) for a, b in zip(parts, (A1, A2, B1), strict=True))


@pytest.mark.parametrize(
    ("module", "features"),
    [
        (lambda: Classifier(nn.Linear(3, 2), nn.Linear(2, 4)), 2),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4)), 4),
    ],
)
def test_features_are_what_goes_into_the_head_if_there_is_one(
    module: Callable[[], nn.Module], features: int
) -> None:
    network, x = module(), torch.randn(5, 3)
    out = forward(network, x)
    assert torch.equal(out.logits, network(x))
    assert out.features.shape == (5, features)
