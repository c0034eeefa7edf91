"""FedRS: the scales by hand, the loss against autograd, training against a plain loop, FedAvg."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from fededge.errors import MethodError
from fededge.federated.aggregation import aggregate
from fededge.method.base import Batch, Output, TurnView
from fededge.methods import method
from fededge.methods.fedrs import FedRS, Rule, restriction
from tests.loops import close, curved, descend
from tests.merging import merged_turns
from tests.training_fixtures import Data, Make, Nets, Take

RULES: tuple[Rule, ...] = ("binary", "smooth", "prior")
COUNTS = torch.tensor([8, 4, 1, 0])


@pytest.mark.parametrize(
    ("rule", "min_count", "scale"),
    [
        ("binary", 1, [1, 1, 1, 0.5]),
        ("binary", 2, [1, 1, 0.5, 0.5]),
        ("smooth", 1, [1, 0.75, 0.5625, 0.5]),
        ("prior", 1, [8 / 13, 4 / 13, 1 / 13, 0]),
    ],
)
def test_the_scales_by_hand(rule: Rule, min_count: int, scale: list[float]) -> None:
    """Counts (8, 4, 1, 0) and alpha 0.5; smooth is n_c/8 · 0.5 + 0.5."""
    assert restriction(COUNTS, 0.5, rule, min_count).tolist() == pytest.approx(scale, abs=1e-15)


def test_balanced_classes_are_scaled_the_same_by_both_rules() -> None:
    counts = torch.tensor([6, 0, 6, 6, 0])
    assert torch.equal(restriction(counts, 0.9, "binary"), restriction(counts, 0.9, "smooth"))


@pytest.mark.parametrize("rule", RULES)
def test_a_device_without_examples_has_finite_scales(rule: Rule) -> None:
    assert restriction(torch.zeros(4, dtype=torch.int64), 0.9, rule).isfinite().all()


def logits(kind: str) -> tuple[Tensor, Tensor]:
    """Logits of four classes, and labels among those that are present."""
    draw = torch.Generator().manual_seed(1)
    z = torch.randn(7, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (7,), generator=draw)
    if kind == "extreme":
        z = 80 * z.sign()
    if kind == "one class":
        y = torch.zeros_like(y)
    return (z[:1], y[:1]) if kind == "single" else (z, y)


@pytest.mark.parametrize("kind", ["random", "extreme", "one class", "single"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_the_loss_and_its_gradient(
    kind: str, rule: Rule, dtype: torch.dtype, tolerance: float
) -> None:
    """Eq. 7 by autograd: -log(e^{a_y z_y} / Σ e^{a_j z_j}); and dz_j = a_j (p_j - Y_j) / B."""
    (z, y), layer = logits(kind), FedRS(alpha=0.7, rs=rule)
    a = {"binary": [1, 1, 1, 0.7], "smooth": [1, 0.85, 0.7375, 0.7]}
    scale = torch.tensor(a.get(rule, [8 / 13, 4 / 13, 1 / 13, 0]), dtype=torch.float64)

    given = z.to(dtype).requires_grad_()
    r = cast(TurnView, SimpleNamespace(counts=COUNTS, memo={}))
    out = Output(given, given)
    loss = layer.objective(r, out, Batch(given, ((y, 1.0),))).loss(out, y)
    (gradient,) = torch.autograd.grad(loss, given)

    plain = z.clone().requires_grad_()
    top = (scale * plain).amax(1, keepdim=True)
    own = (scale * plain - top).gather(1, y[:, None]).squeeze(1)
    expected = ((scale * plain - top).exp().sum(1).log() - own).mean()
    (by_autograd,) = torch.autograd.grad(expected, plain)
    hot = torch.zeros_like(z).scatter_(1, y[:, None], 1.0)
    by_hand = scale * ((scale * z).softmax(1) - hot) / len(y)

    assert loss.dtype == gradient.dtype == dtype
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance, abs=tolerance)
    assert torch.allclose(gradient.double(), by_autograd, atol=tolerance, rtol=0)
    assert torch.allclose(gradient.double(), by_hand, atol=tolerance, rtol=0)


@pytest.mark.parametrize("rule", RULES)
def test_five_steps_are_those_of_a_plain_loop(
    rule: Rule, examples: Data, trainer: Make, turn: Take
) -> None:
    data, net = examples(9), curved()
    n = torch.bincount(data.y, minlength=3).double()
    scales = {
        "binary": torch.tensor([1.0, 1.0, 0.6], dtype=torch.float64),
        "smooth": 0.4 * n / n.max() + 0.6,
        "prior": n / 9,
    }

    def restricted(z: Tensor, h: Tensor, y: Tensor) -> Tensor:
        return -(scales[rule] * z).log_softmax(1)[torch.arange(9), y].mean()

    w = net.vector.clone()
    answer = turn(
        trainer(FedRS(alpha=0.6, rs=rule), net, data), epochs=5, batch_size=9, weight_decay=0.01
    )
    assert n[2] == 0
    assert close(answer.upload, descend(net, w, data, 5, restricted))
    assert not close(answer.upload, descend(net, w, data, 5))
    assert torch.equal(answer.personal, answer.upload)


def test_a_class_with_too_few_examples_is_missing(
    examples: Data, trainer: Make, turn: Take
) -> None:
    """With min_count above every count all logits are scaled by alpha alike."""
    data, net = examples(9), curved()
    w = net.vector.clone()
    answer = turn(
        trainer("fedrs(alpha=0.6, min_count=10)", net, data), batch_size=9, weight_decay=0.01
    )

    def scaled(z: Tensor, h: Tensor, y: Tensor) -> Tensor:
        return -(0.6 * z).log_softmax(1)[torch.arange(9), y].mean()

    assert close(answer.upload, descend(net, w, data, 1, scaled))


@pytest.mark.parametrize("rule", ["binary", "smooth"])
def test_with_alpha_1_it_is_fedavg_bit_for_bit(
    rule: str, deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """On the device and, by number of examples, at the coordinator."""
    models = []
    received = deep().vector.clone()
    for name in ("fedavg", f"fedrs(alpha=1, rs={rule}, agg=n)"):
        answers = {
            device: turn(
                trainer(name, deep(), examples(count, side=16, seed=count), device),
                received=received,
                epochs=2,
            )
            for device, count in {"a": 21, "b": 6}.items()
        }
        w, _ = merged_turns(method(name), received, {}, answers, devices=2, layout=deep().layout)
        models.append((answers["a"].upload, answers["b"].upload, w))
    assert all(torch.equal(one, other) for one, other in zip(*models, strict=True))
    assert not torch.equal(models[0][2], received)


def test_updates_count_the_same_unless_they_count_by_their_examples(plain: Nets) -> None:
    """Models 1 and 5 of 30 and 10 examples: (1 + 5)/2 = 3, or (30 · 1 + 10 · 5)/40 = 2."""
    layout = plain().layout
    w = np.zeros(layout.size, np.float32)
    uploads = {"a": np.full_like(w, 1.0), "b": np.full_like(w, 5.0)}
    reports = {"a": {"examples": 30.0}, "b": {"examples": 10.0}}
    for name, value in (("fedrs", 3.0), ("fedrs(agg=n)", 2.0)):
        merged, _ = aggregate(
            method(name), w, {}, reports, uploads.__getitem__, devices=2, layout=layout
        )
        assert np.array_equal(merged, np.full_like(w, value))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fedrs(alpha=1.5)", "alpha must lie between 0 and 1"),
        ("fedrs(alpha=-0.1)", "alpha must lie between 0 and 1"),
        ("fedrs(min_count=0)", "min_count must be at least 1"),
        ("fedrs(rs=hard)", "must be one of binary, smooth, prior; got 'hard'"),
        ("fedrs(agg=examples)", "must be one of uniform, n; got 'examples'"),
    ],
)
def test_a_bad_option_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(MethodError, match=rf"^fedrs\(.*{sentence}$"):
        method(text)
