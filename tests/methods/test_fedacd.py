"""FedACD's losses against autograd in double precision, its turns against plain loops, its V."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fededge.errors import MethodError, WireError
from fededge.federated.aggregation import aggregate
from fededge.method.base import Batch, Method, Objective, Output, Phase, TurnView
from fededge.method.stack import Stack
from fededge.methods import Hyper, Private, method
from fededge.methods.fedacd import FedACD, log_delta
from fededge.methods.mixup import Mixup
from fededge.models.evaluation import probability_matrix
from fededge.training import Examples
from tests.training_fixtures import Data, Make, Nets, Take

DRAW = torch.Generator().manual_seed(11)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


def labels(count: int, classes: int) -> Tensor:
    return torch.randint(0, classes, (count,), generator=DRAW)


# The losses


def spread(z: Tensor, y: Tensor, fixed: bool = False) -> Tensor:
    """Eq. 7 as the paper has it: KL(p ‖ q), q_y = p_y and q_k = (1 - p_y) / (C - 1)."""
    rows = []
    for row, label in zip(z, y.tolist(), strict=True):
        p = row.exp() / row.exp().sum()
        rest = sum(p[k] for k in range(len(p)) if k != label)  # 1 - p_y, without its rounding
        q = torch.stack([p[k] if k == label else rest / (len(p) - 1) for k in range(len(p))])
        rows.append((p * (p / (q.detach() if fixed else q)).log()).sum())
    return torch.stack(rows).mean()


def adjusted(z: Tensor, y: Tensor, delta: Tensor) -> Tensor:
    """Eq. 8 as the paper has it: -log(e^z_y / Σ_i Δ_yi e^z_i)."""
    rows = [
        -(row[label].exp() / (delta[label] * row.exp()).sum()).log()
        for row, label in zip(z, y, strict=True)
    ]
    return torch.stack(rows).mean()


def flattening(z: Tensor, y: Tensor) -> Tensor:
    return Objective(0.0, flat=1.0).loss(Output(z, z), y)


def with_gradient(loss: Callable[..., Tensor], z: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    value = loss(z, *rest)
    return value.detach(), torch.autograd.grad(value, z)[0]


EXTREME = 80 * torch.tensor(
    [[1, -1, -1, -1], [-1, 1, 1, -1], [1, 1, 1, 1], [0, -1, 1, 0.5], [-1, -1, -1, -1]],
    dtype=torch.float64,
)

inputs = pytest.mark.parametrize(
    ("z", "y"),
    [
        pytest.param(3 * normal(16, 10), labels(16, 10), id="random"),
        pytest.param(normal(16, 100), labels(16, 100), id="many classes"),
        pytest.param(EXTREME, torch.tensor([0, 0, 3, 2, 1]), id="extreme"),
        pytest.param(EXTREME, torch.tensor([1, 3, 1, 1, 0]), id="extreme and wrong"),
        pytest.param(2 * normal(8, 5), torch.full((8,), 3), id="one class"),
        pytest.param(2 * normal(8, 5), labels(8, 3), id="missing classes"),
        pytest.param(normal(1, 3), torch.tensor([2]), id="one example"),
        pytest.param(4 * normal(6, 2), labels(6, 2), id="two classes"),
    ],
)


@inputs
def test_flattening_and_its_gradient_are_the_papers(z: Tensor, y: Tensor) -> None:
    """A fixed q makes no difference: Σ p_i d log q_i is 0."""
    loss, gradient = with_gradient(flattening, z, y)
    for fixed in (False, True):
        expected, slope = with_gradient(spread, z, y, fixed)
        assert torch.allclose(loss, expected, rtol=1e-10, atol=1e-10)
        assert torch.allclose(gradient, slope, rtol=1e-10, atol=1e-10)
    single, single_gradient = with_gradient(flattening, z.float(), y)
    assert torch.allclose(single.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.allclose(single_gradient.double(), slope, rtol=1e-5, atol=1e-5)


def test_flattening_by_hand() -> None:
    """z = (0, 0, ln 3) of class 0: p = (1, 1, 3)/5; of the others' 4/5 they have 1/4 and 3/4.

    L1 = 1/5 · ln(2/4) + 3/5 · ln(6/4) = -0.138629 + 0.243279 = 0.104650, and its gradient is
    (-1/5 · L1, 1/5 · (ln(2/4) - L1), 3/5 · (ln(6/4) - L1)) = (-0.020930, -0.159559, 0.180489).
    """
    z = torch.tensor([[0.0, 0.0, math.log(3)]], dtype=torch.float64)
    loss, gradient = with_gradient(flattening, z, torch.tensor([0]))
    assert loss.item() == pytest.approx(0.104650, abs=1e-6)
    assert gradient[0].tolist() == pytest.approx([-0.020930, -0.159559, 0.180489], abs=1e-6)


def test_flattening_is_zero_where_the_others_are_even() -> None:
    loss, gradient = with_gradient(
        flattening, torch.tensor([[5.0, -1.0, -1.0, -1.0]]), labels(1, 1)
    )
    assert loss == pytest.approx(0, abs=1e-8)
    assert gradient.abs().max() < 1e-7


@inputs
def test_moved_logits_give_the_papers_second_loss(z: Tensor, y: Tensor) -> None:
    """With the P of other logits, of which the last class has none."""
    classes = z.shape[1]
    P = probability_matrix(2 * normal(50, classes), labels(50, classes - 1), classes)
    absent = torch.arange(classes) == classes - 1
    A = log_delta(P, absent, missing=1e-4, clamp=1e-8, cap=0.0)
    delta = P.clamp(min=1e-8) / P.clamp(min=1e-8).T
    delta[:, -1] = 1e-4
    delta.fill_diagonal_(1.0)
    objective = Objective(shift=A)

    def loss(z: Tensor) -> Tensor:
        return objective.loss(Output(z, z), y)

    value, gradient = with_gradient(loss, z)
    expected, slope = with_gradient(adjusted, z, y, delta)
    assert torch.allclose(value, expected, rtol=1e-10, atol=1e-10)
    assert torch.allclose(gradient, slope, rtol=1e-10, atol=1e-10)


# The table of log Δ


def test_log_delta_by_hand() -> None:
    """Two classes present, the third missing.

    Δ_01 = 0.2 / 0.4 = 1/2, so log Δ_01 = -0.693147, and log Δ_10 is its opposite; the missing
    class has log 1e-4 = -9.210340 in its column, and the diagonal has 0.
    """
    P = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.0, 0.0, 0.0]])
    A = log_delta(P, torch.tensor([False, False, True]), missing=1e-4, clamp=1e-8, cap=0.0)
    assert A[0].tolist() == pytest.approx([0.0, -0.693147, -9.210340], abs=1e-5)
    assert A[1].tolist() == pytest.approx([0.693147, 0.0, -9.210340], abs=1e-5)
    assert A.isfinite().all()


def test_a_probability_of_zero_is_lifted_and_a_cap_leaves_the_missing_alone() -> None:
    """P_01 = 0 becomes 1e-8: log(1e-8 / 0.5) = -17.7275, or -3 where that is the most."""
    P = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    absent = torch.tensor([False, False, True])
    free = log_delta(P, absent, missing=1e-4, clamp=1e-8, cap=0.0)
    assert free[0, 1].item() == pytest.approx(-17.7275, abs=1e-4)
    assert free[1, 0].item() == -free[0, 1].item()
    capped = log_delta(P, absent, missing=1e-4, clamp=1e-8, cap=3.0)
    assert capped[:2, :2].tolist() == [[0.0, -3.0], [3.0, 0.0]]
    assert torch.equal(capped[:2, 2], free[:2, 2])


# Whole turns against plain loops


@dataclass
class Seen:
    """A step as it was: the mixed or plain inputs, the labellings, whether FedACD had a part."""

    x: Tensor
    targets: Sequence[tuple[Tensor, float]]
    acts: bool = True
    ends_pass: bool = False


def tape(steps: list[Seen], first: str = "") -> Method:
    """A layer that changes nothing and writes down every step; in phase `first`, as another's."""

    def batch(self: Method, r: TurnView, batch: Batch) -> Batch:
        x = batch.x.flatten(1).double()
        steps.append(Seen(x, batch.targets, acts=r.phase.name != first))
        return batch

    def epoch_end(self: Method, r: TurnView) -> None:
        steps[-1].ends_pass = True

    hooks = {"name": "tape", "batch": batch, "epoch_end": epoch_end}
    kind: type[Method] = type("Tape", (Method,), hooks)
    return kind()


def logits(w: Tensor, x: Tensor) -> Tensor:
    return x @ w[:12].view(3, 4).T + w[12:]


class Sums:
    """P by the book: for each class the mean of p over its examples, by their shares of it."""

    def __init__(self) -> None:
        self.num = {c: torch.zeros(3, dtype=torch.float64) for c in range(3)}
        self.den = dict.fromkeys(range(3), 0.0)

    def add(self, z: Tensor, targets: Sequence[tuple[Tensor, float]]) -> Sums:
        for y, share in targets:
            for row, label in zip(z.detach(), y.tolist(), strict=True):
                self.num[label] += share * row.exp() / row.exp().sum()
                self.den[label] += share
        return self

    def matrix(self, otherwise: Tensor) -> Tensor:
        rows = [self.num[c] / self.den[c] if self.den[c] else otherwise[c] for c in range(3)]
        return torch.stack(rows)


def ratios(P: Tensor, present: Sequence[int], o: FedACD) -> Tensor:
    delta = torch.ones(3, 3, dtype=torch.float64)
    for y in present:
        for i in set(range(3)) - {y}:
            ratio = max(P[y, i].item(), o.clamp) / max(P[i, y].item(), o.clamp)
            if o.cap:
                ratio = min(max(ratio, math.exp(-o.cap)), math.exp(o.cap))
            delta[y, i] = ratio if i in present else o.missing
    return delta if o.delta else torch.ones_like(delta)


def replay(w: Tensor, data: Examples, steps: Sequence[Seen], o: FedACD) -> tuple[Tensor, float]:
    """FedACD's local training by autograd in double precision, without momentum; then V."""
    x, w, present = data.x.flatten(1).double() / 255, w.double(), sorted(set(data.y.tolist()))
    zero = torch.zeros(3, 3, dtype=torch.float64)
    P = Sums().add(logits(w, x), [(data.y, 1.0)]).matrix(zero)
    sums = Sums()
    for step in steps:
        w = w.detach().requires_grad_()
        z = logits(w, step.x)
        delta = ratios(P, present, o) if step.acts else torch.ones(3, 3, dtype=torch.float64)
        loss = torch.zeros((), dtype=torch.float64)
        for y, share in step.targets:
            second = adjusted(z, y, delta)
            first = spread(z, y) if o.l1 and step.acts else 0.0
            loss = loss + share * (first + (o.lam * second if step.acts else second))
        w = w.detach() - 0.1 * torch.autograd.grad(loss, w)[0]
        if step.acts:
            sums.add(z, step.targets)
            if step.ends_pass:
                P, sums = sums.matrix(P), Sums()
    P = Sums().add(logits(w, x), [(data.y, 1.0)]).matrix(zero)
    rows = []
    for y in present:
        q = [o.tau if i == y else (1 - o.tau) / 2 for i in range(3)]
        rows.append(sum(float(P[y, i] * (P[y, i] / q[i]).log()) for i in range(3)))
    KL = sum(rows) / (len(rows) if o.kl_reduce == "mean_present" else 1)
    return w, 1 / (1 + math.exp(-1 / KL))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"lam": 0.3},
    {"tau": 0.8},
    {"missing": 0.5},
    {"clamp": 0.34},
    {"cap": 0.02},
    {"kl_reduce": "mean_present"},
    {"l1": False},
    {"delta": False},
    {"l1": False, "delta": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mixed", [False, True], ids=["plain", "mixup"])
def test_a_turn_is_the_papers(
    options: Mapping[str, Any],
    mixed: bool,
    plain: Nets,
    examples: Data,
    trainer: Make,
    turn: Take,
) -> None:
    """Three passes of three batches, with a missing class; every option alone, and mixtures.

    The first pass uses the P of the downloaded model, the others that of the pass before.
    """
    data, net, chosen = examples(10), plain(), FedACD(**options)
    w, steps = net.vector.clone(), list[Seen]()
    layers = (Mixup(1.0), chosen, tape(steps)) if mixed else (chosen, tape(steps))
    answer = turn(trainer(Stack(layers), net, data), epochs=3, momentum=0.0)
    assert [step.ends_pass for step in steps] == [False, False, True] * 3
    expected, V = replay(w, data, steps, chosen)
    assert torch.allclose(answer.upload.double(), expected, atol=2e-6)
    assert answer.scalars["v_m"] == pytest.approx(V, abs=1e-6)
    if options:  # the option is not without effect, so the lines above can tell
        other, other_V = replay(w, data, steps, FedACD())
        differs = (other - expected).abs().max() > 1e-4 or abs(other_V - V) > 1e-3
        assert differs


@pytest.mark.parametrize("count", [1, 5], ids=["one example", "one class"])
def test_a_device_that_knows_one_class_only(
    count: int, plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    some, net = examples(count), plain()
    data = Examples(some.x, torch.full((count,), 1), some.held_x, some.held_y, 3)
    w, steps = net.vector.clone(), list[Seen]()
    device = trainer(Stack((FedACD(), tape(steps))), net, data)
    answer = turn(device, epochs=4, batch_size=2, momentum=0.0)
    expected, V = replay(w, data, steps, FedACD())
    assert torch.allclose(answer.upload.double(), expected, atol=2e-6)
    assert answer.scalars["v_m"] == pytest.approx(V, abs=1e-6)


@dataclass(frozen=True)
class Halves(Method):
    """Two phases on the way to the sent model, which share the passes over the data."""

    name: ClassVar[str] = "halves"
    phase_names: ClassVar[tuple[str, ...]] = ("first", "second")

    def phases(self, r: TurnView) -> Sequence[Phase]:
        return Phase("first", 0.5), Phase("second", 0.5)


def test_a_class_that_a_part_of_a_pass_left_out_keeps_its_row(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """FedACD in the second phase, which begins with the last batch of a pass: one of one class."""
    data, net = examples(4), plain()
    w, steps = net.vector.clone(), list[Seen]()
    stack = Stack((Halves(), FedACD(), tape(steps, "first")), {"fedacd": ("second",)})
    answer = turn(trainer(stack, net, data), seed=4, epochs=3, batch_size=2, momentum=0.0)
    assert [step.acts for step in steps] == [False] * 3 + [True] * 3
    assert steps[3].ends_pass
    assert len(set(steps[3].targets[0][0].tolist())) == 1
    assert len(set(data.y.tolist())) == 2
    expected, V = replay(w, data, steps, FedACD())
    assert torch.allclose(answer.upload.double(), expected, atol=2e-6)
    assert answer.scalars["v_m"] == pytest.approx(V, abs=1e-6)


def test_classes_that_a_device_lacks_are_forgotten_less(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """The purpose of the method: the missing class keeps probability in local training."""
    data, left = examples(12), {}
    for name in ("fedavg", "fedacd", "fedacd(delta=false)"):
        answer = turn(trainer(name, plain(), data), epochs=20)
        z = logits(answer.upload.double(), data.x.flatten(1).double() / 255)
        left[name] = float(z.softmax(1)[:, 2].mean())
    assert left["fedacd"] > 2 * left["fedacd(delta=false)"]
    assert left["fedacd"] > 2 * left["fedavg"]


# Special cases that equal another method


def test_its_whole_loss_is_what_ala_learns_by_wherever_it_stands(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """A layer before it may ask for the loss before the first step; P is of the global model."""
    data, w, local = examples(9), plain().vector, plain(1).vector

    def start(text: str) -> Tensor:
        """The start that ALA chooses: the step is too small to be seen."""
        kept = Private({"ala.local": local})
        return turn(trainer(text, plain(), data), kept, received=w, lr=1e-30).upload

    first, last = start("ala+fedacd"), start("fedacd+ala")
    assert torch.equal(first, last)
    assert not torch.equal(first, start("ala+fedacd(delta=false)"))


@pytest.mark.parametrize(
    "options", ["l1=false, delta=false", "l1=false, missing=1, cap=1e-30"], ids=["off", "ones"]
)
def test_without_l1_and_with_delta_one_it_trains_as_fedavg_bit_for_bit(
    options: str, deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """No Δ equals a Δ of ones; with batch norm, dropout and momentum."""
    data = examples(21, side=16)
    for layer in ("", "+mixup"):
        answers = [
            turn(trainer(f"{name}{layer}", deep(), data), epochs=3)
            for name in ("fedavg", f"fedacd({options})", "fedacd")
        ]
        uploads = [answer.upload for answer in answers]
        # A table takes two softmaxes for two labels where one would do: the same but for rounding.
        exact = 1e-4 if layer and "missing" in options else 0.0
        assert torch.allclose(uploads[0], uploads[1], rtol=exact, atol=exact)
        assert not torch.allclose(uploads[0], uploads[2], rtol=1e-4, atol=1e-4)
        losses = [answer.scalars["loss"] for answer in answers[:2]]
        assert losses[0] == pytest.approx(losses[1], rel=exact, abs=exact)


# The coordinator's half


@pytest.mark.parametrize(("kl", "V"), [("sum", 0.726872), ("mean_present", 0.876275)])
def test_v_by_hand(
    kl: str, V: float, plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """A model of zeros gives every class 1/3; with tau = 0.8, Q is (0.8, 0.1, 0.1).

    A row has KL = (ln(0.41667) + 2 ln(3.33333)) / 3 = 0.510826. Two classes are present: the sum
    is 1.021651 and V = sigmoid(0.978808) = 0.726872; by their mean, sigmoid(1.957615) = 0.876275.
    """
    device = trainer(f"fedacd(tau=0.8, kl_reduce={kl})", plain(), examples(10))
    answer = turn(device, received=torch.zeros(15), lr=0.0)
    assert answer.scalars["v_m"] == pytest.approx(V, abs=1e-5)


@pytest.mark.parametrize(("size", "V"), [(1e4, 1.0), (-1e4, 0.521701)], ids=["perfect", "hopeless"])
def test_v_stays_between_a_half_and_one(
    size: float, V: float, plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """p = (1, 0, 0): KL = ln(1 / 0.99999) = 1e-5, V = sigmoid(1e5) = 1 to the last digit.

    p = (0, 1/2, 1/2): KL = ln(0.5 / 5e-6) = 11.512925, V = sigmoid(0.086859) = 0.521701.
    """
    some = examples(8)
    data = Examples(some.x, torch.zeros(8, dtype=torch.int64), some.held_x, some.held_y, 3)
    w = torch.zeros(15)
    w[12] = size
    answer = turn(trainer("fedacd", plain(), data), received=w, lr=0.0)
    assert answer.scalars["v_m"] == pytest.approx(V, abs=1e-6)
    method("fedacd").check(answer.scalars, Hyper(batch_size=4))


@pytest.mark.parametrize(
    ("agg", "expected"), [("v", 1.8), ("examples", 2.8), ("uniform", 2.0)], ids=str
)
def test_updates_count_by_v_by_examples_or_alike(agg: str, expected: float, plain: Nets) -> None:
    """Models 1 and 3: V 0.75 and 0.5, 10 and 90 examples; a third device has none.

    (0.75 · 1 + 0.5 · 3) / 1.25 = 1.8;  0.1 · 1 + 0.9 · 3 = 2.8;  (1 + 3) / 2 = 2.
    """
    stack, layout = method(f"fedacd(agg={agg})"), plain().layout
    common = {"steps": 1.0, "loss": 1.0}
    reports = {
        "a": {"examples": 10.0, "v_m": 0.75, **common},
        "b": {"examples": 90.0, "v_m": 0.5, **common},
        "c": {"examples": 0.0, "v_m": 1.0, **common},
    }
    zero = np.zeros(15, np.float32)
    uploads = {"a": zero + 1, "b": zero + 3, "c": zero}
    w, state = aggregate(stack, zero, {}, reports, uploads.__getitem__, devices=5, layout=layout)
    assert w.tolist() == pytest.approx([expected] * 15)
    assert state == {}


@pytest.mark.parametrize("v", [0.499, 1.001, 1e9, -1.0, 0.0, math.nan, math.inf])
def test_a_v_that_no_honest_device_has_is_refused(v: float) -> None:
    report = {"examples": 10.0, "steps": 1.0, "loss": 1.0, "v_m": v}
    with pytest.raises(WireError, match=r"^the report's v_m must be between 0\.5 and 1, got "):
        method("fedacd").check(report, Hyper())


@pytest.mark.parametrize("agg", ["v", "examples", "uniform"])
def test_v_is_reported_whatever_updates_count_by(agg: str) -> None:
    stack = method(f"fedacd(agg={agg})+mixup")
    report = {"examples": 10.0, "steps": 1.0, "loss": 1.0}
    with pytest.raises(WireError, match="the report lacks v_m"):
        stack.check(report, Hyper())
    stack.check({**report, "v_m": 0.5}, Hyper())


# Its text


def test_it_prints_every_option_and_reads_them_again() -> None:
    text = "fedacd(lam=0.5, cap=4.0, kl_reduce=mean_present, agg=uniform, l1=false)"
    full = (
        "fedacd(lam=0.5, tau=0.99999, missing=0.0001, clamp=1e-08, cap=4.0, "
        "kl_reduce=mean_present, agg=uniform, l1=false, delta=true)"
    )
    assert str(method(text)) == full
    assert method(full) == method(text)


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("lam=0", "lam must be above 0"),
        ("lam=-1", "lam must be above 0"),
        ("tau=1", "tau must lie between 0 and 1"),
        ("tau=0", "tau must lie between 0 and 1"),
        ("missing=0", "missing must be above 0 and at most 1"),
        ("missing=1.5", "missing must be above 0 and at most 1"),
        ("clamp=0", "clamp must lie between 0 and 1"),
        ("clamp=1", "clamp must lie between 0 and 1"),
        ("cap=-1", "cap must be at least 0"),
        ("kl_reduce=mean", r"fedacd\(kl_reduce=…\) must be one of sum, mean_present; got 'mean'"),
        ("agg=n", r"fedacd\(agg=…\) must be one of v, examples, uniform; got 'n'"),
    ],
)
def test_options_out_of_range_are_refused(option: str, rule: str) -> None:
    with pytest.raises(MethodError, match=rule + "$"):
        method(f"fedacd({option})")
