"""FedNova: rounds by hand, ‖a‖₁ by recursion and autograd, and FedAvg where it is the same."""

from __future__ import annotations

import pytest
import torch

from fededge.errors import MethodError, WireError
from fededge.methods import Hyper, method
from fededge.methods.fednova import a_norm
from fededge.training import Answer
from tests.merging import merged, merged_turns, update
from tests.training_fixtures import Data, Make, Nets, Take

ROUNDS = [
    {"a": update(1, 4.0, 2.0, steps=2, a_k=2), "b": update(3, -8.0, 6.0, steps=4, a_k=4)},
    {"a": update(1, 0.5, 0.0, steps=2, a_k=2), "c": update(1, -11.5, 0.0, steps=4, a_k=8)},
]


def test_two_rounds_by_hand() -> None:
    """w = 0. The running statistic is averaged by the examples: 5, then 0.

    Round 1: p = (1/4, 3/4), τ_eff = 2/4 + 3·4/4 = 3.5,
    d = 1/4 · (0 - 4)/2 + 3/4 · (0 + 8)/4 = 1, w = -3.5 (FedAvg: -5).
    Round 2: p = (1/2, 1/2), τ_eff = (2 + 8)/2 = 5,
    d = 1/2 · (-3.5 - 0.5)/2 + 1/2 · (-3.5 + 11.5)/8 = -0.5, w = -3.5 + 2.5 = -1.
    """
    first, second = merged("fednova", (0.0, 9.0), ROUNDS)
    assert first == pytest.approx([-3.5, 5])
    assert second == pytest.approx([-1, 0])


def test_the_coordinators_momentum_by_hand() -> None:
    """gmf = 0.5. Round 1: v = 3.5, w = -3.5. Round 2: v = 0.5 · 3.5 - 2.5 = -0.75, w = -2.75."""
    first, second = merged("fednova(gmf=0.5)", (0.0, 9.0), ROUNDS)
    assert first == pytest.approx([-3.5, 5])
    assert second == pytest.approx([-2.75, 0])


def test_effective_steps_of_the_authors_code_by_hand() -> None:
    """τ_eff of round 2 is (2 + 4)/2 = 3: w = -3.5 + 3 · 0.5 = -2."""
    first, second = merged("fednova(tau_eff=steps)", (0.0, 9.0), ROUNDS)
    assert first == pytest.approx([-3.5, 5])
    assert second == pytest.approx([-2, 0])


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_with_momentum_it_is_the_papers_formula_and_the_authors_recursion(
    steps: int, rho: float
) -> None:
    counter = total = 0.0
    for _ in range(steps):
        counter = rho * counter + 1
        total += counter
    formula = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert a_norm(steps, rho, 0.0) == pytest.approx(total, rel=1e-12)
    assert a_norm(steps, rho, 0.0) == pytest.approx(formula, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
@pytest.mark.parametrize("eta_mu", [0.001, 0.1, 0.5])
def test_with_a_proximal_term_it_is_a_geometric_sum(steps: int, eta_mu: float) -> None:
    expected = sum((1 - eta_mu) ** i for i in range(steps))
    assert a_norm(steps, 0.0, eta_mu) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.3, 9.0])
def test_it_sums_what_each_gradient_counts_for_in_the_end(rho: float, mu: float) -> None:
    """w after 25 steps of rate 0.1, differentiated by every gradient on the way.

    With momentum and a pull the model swings: some gradients end with the other sign.
    """
    gradients = torch.zeros(25, dtype=torch.float64, requires_grad=True)
    w = buffer = torch.zeros((), dtype=torch.float64)
    for g in gradients:
        buffer = rho * buffer + g + mu * w
        w = w - 0.1 * buffer
    (a,) = torch.autograd.grad(-w / 0.1, gradients)
    assert a[-1] == pytest.approx(1)
    assert bool((a < 0).any()) == (rho * mu > 0)
    assert a_norm(25, rho, 0.1 * mu) == pytest.approx(float(a.abs().sum()), rel=1e-12)


def test_without_steps_it_is_zero() -> None:
    assert a_norm(0, 0.9, 0.1) == 0


def both(
    text: str, sizes: tuple[int, int], momentum: float, fixtures: tuple[Nets, Data, Make, Take]
) -> tuple[torch.Tensor, list[Answer], torch.Tensor]:
    """A round of two devices: the next global model, the answers, and the model before."""
    nets, examples, trainer, turn = fixtures
    net = nets()
    w = net.vector.clone()
    answers = [
        turn(
            trainer(text, nets(), examples(size, side=16, seed=size + i), f"d{i}"),
            received=w,
            epochs=2,
            momentum=momentum,
        )
        for i, size in enumerate(sizes)
    ]
    stack = method(text)
    model, _ = merged_turns(
        stack,
        w,
        stack.initial(net.layout),
        {f"d{i}": answer for i, answer in enumerate(answers)},
        devices=2,
        layout=net.layout,
    )
    return model, answers, w


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_equal_steps_it_is_fedavg(
    momentum: float, deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Batches of four: 7 and 8 examples are two steps a pass, but not the same weight."""
    fixtures = (deep, examples, trainer, turn)
    ours, answers, w = both("fednova", (7, 8), momentum, fixtures)
    plain, _, _ = both("fedavg", (7, 8), momentum, fixtures)
    assert [answer.scalars["steps"] for answer in answers] == [4, 4]
    assert torch.allclose(ours, plain, atol=1e-6)
    assert not torch.allclose(ours, w, atol=1e-3)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_with_unequal_steps_every_direction_counts_by_its_examples(
    mu: float, deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    fixtures = (deep, examples, trainer, turn)
    text = f"fednova(mu={mu})"
    ours, answers, w = both(text, (2, 12), 0.9, fixtures)
    a = [a_norm(steps, 0.9, 0.1 * mu) for steps in (2, 6)]
    assert [answer.scalars["a_k"] for answer in answers] == a
    w, p = w.double(), (2 / 14, 12 / 14)
    d = sum(p[i] * (w - answers[i].upload.double()) / a[i] for i in range(2))
    expected = w - (p[0] * a[0] + p[1] * a[1]) * d
    statistics = deep().layout.trainable == 0
    mean = sum(p[i] * answers[i].upload.double() for i in range(2))
    assert isinstance(mean, torch.Tensor)
    expected[statistics] = mean[statistics]
    assert statistics.any()
    assert torch.allclose(ours.double(), expected, atol=1e-6)
    assert not torch.allclose(ours.double(), mean, atol=1e-4)


def test_every_phase_gathers_a_momentum_of_its_own(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Two passes of three batches that tune, and one that trains; one aside is not counted."""
    data = examples(12)
    tuned = turn(trainer("finetune(epochs=2)+fednova", plain(), data))
    assert tuned.scalars["steps"] == 9
    assert tuned.scalars["a_k"] == pytest.approx(a_norm(6, 0.9, 0) + a_norm(3, 0.9, 0))
    aside = turn(trainer("ditto+fednova", plain(), data))
    assert aside.scalars["a_k"] == pytest.approx(a_norm(3, 0.9, 0))


def test_it_counts_the_steps_of_phases_that_it_is_not_limited_to(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """The way from the received model to the sent one goes through both: 6 steps and 3."""
    limited = turn(trainer("finetune(epochs=2)+fednova(mu=1)@train", plain(), examples(12)))
    tuned, trained = a_norm(6, 0.9, 0), a_norm(3, 0.9, 0.1)
    assert limited.scalars["a_k"] == pytest.approx(tuned + trained)


def test_it_counts_the_pull_of_other_layers_by_hand(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Three steps of rate 0.1 without momentum: 1 + (1 - 0.1 κ) + (1 - 0.1 κ)².

    κ = 2 of fedprox: 1 + 0.8 + 0.64 = 2.44; with fednova's own 3 it is 5: 1 + 0.5 + 0.25 = 1.75.
    """
    data = examples(12)
    for text, a_k in (
        ("fednova", 3.0),
        ("fedprox(mu=2)+fednova", 2.44),
        ("fednova+fedprox(mu=2)", 2.44),
        ("fedprox(mu=2)+fednova(mu=3)", 1.75),
    ):
        answer = turn(trainer(text, plain(), data), momentum=0.0)
        assert answer.scalars["steps"] == 3
        assert answer.scalars["a_k"] == pytest.approx(a_k, rel=1e-12), text


def test_a_pull_counts_in_the_phase_that_it_acts_in(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Two passes of three batches tune, under κ = 2; the last three train without a pull."""
    answer = turn(
        trainer("finetune(epochs=2)+fedprox(mu=2)@tune+fednova@tune@train", plain(), examples(12)),
        momentum=0.0,
    )
    expected = sum(0.8**i for i in range(6)) + 3
    assert answer.scalars["a_k"] == pytest.approx(expected, rel=1e-12)


def test_with_fedprox_it_is_the_same_as_with_its_own_mu(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    fixtures = (deep, examples, trainer, turn)
    composed, theirs, _ = both("fedprox(mu=0.5)+fednova", (2, 12), 0.9, fixtures)
    alone, ours, _ = both("fednova(mu=0.5)", (2, 12), 0.9, fixtures)
    assert torch.equal(composed, alone)
    assert [answer.scalars for answer in theirs] == [answer.scalars for answer in ours]


def test_its_proximal_term_is_fedproxs_bit_for_bit(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    uploads = [
        turn(trainer(text, plain(), examples(9)), epochs=3).upload
        for text in ("fednova(mu=0.5)", "fedprox(mu=0.5)", "fednova")
    ]
    assert torch.equal(uploads[0], uploads[1])
    assert not torch.equal(uploads[0], uploads[2])


@pytest.mark.parametrize("a_k", [0.0, -2.0, 0.5, 8.1, 10.0, 1e300, float("nan"), float("inf")])
def test_a_count_that_no_solver_has_is_refused(a_k: float) -> None:
    """In four steps with momentum 0.5 no gradient counts more than 1 + 0.5 + 0.25 + … = 2 times.

    A tiny count would blow its own update up, a large one those of the others.
    """
    report, _ = update(5, 0.0, steps=4, a_k=a_k)
    with pytest.raises(WireError, match=r"report's a_k must be between 1 and 8\.00000\d*, got"):
        method("fednova").check(report, Hyper(epochs=4, momentum=0.5))


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("rho", [0.0, 1e-9, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("share", [0.0, 1e-6, 0.1, 0.5, 0.9, 0.999999, 1.0])
def test_every_solver_whose_pull_does_not_diverge_is_in_range(
    steps: int, rho: float, share: float
) -> None:
    """A pull diverges where ημ is beyond 2 (1 + ρ)."""
    a_k = a_norm(steps, rho, share * 2 * (1 + rho))
    report, _ = update(steps, 0.0, steps=steps, a_k=a_k)
    method("fednova").check(report, Hyper(batch_size=1, momentum=rho))


def test_an_honest_count_and_an_empty_device_pass() -> None:
    for examples, steps, a_k in ((5, 4, 4), (5, 4, a_norm(4, 0.99, 0)), (5, 1, 1), (0, 0, 0)):
        report, _ = update(examples, 0.0, steps=steps, a_k=a_k)
        method("fednova").check(report, Hyper(epochs=4, momentum=0.99))


@pytest.mark.parametrize("other", ["fedrs", "fedavgm", "scaffold", "fedacd"])
def test_a_layer_that_decides_weights_or_step_itself_is_refused(other: str) -> None:
    with pytest.raises(MethodError, match=f"^{other} and fednova cannot be combined: each decides"):
        method(f"{other}+fednova")


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("mu=-1", "mu must be at least 0$"),
        ("gmf=1", "gmf must lie from 0 to below 1$"),
        ("gmf=-0.1", "gmf must lie from 0 to below 1$"),
        ("tau_eff=all", "must be one of a, steps; got 'all'$"),
    ],
)
def test_bad_options_are_refused(option: str, rule: str) -> None:
    with pytest.raises(MethodError, match=rule):
        method(f"fednova({option})")
