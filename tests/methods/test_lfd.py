"""LfD: its loss and gradients in double precision, turns against plain loops, its options."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.method.base import Batch, Output, TurnView
from fededge.methods import Private, Stack, method
from fededge.methods.lfd import LfD, drift_target
from fededge.methods.mixup import Mixup
from fededge.models.base import Classifier
from fededge.models.head import CosineHead
from fededge.training import Examples
from tests.training_fixtures import Data, Make, Nets, Take, observing

Loss = tuple[Tensor, Tensor, Tensor]

CLASSES, WIDTH, TAU, LR = 3, 5, 0.1, 0.1


@pytest.fixture
def cosine() -> Nets:
    """A factory of networks for 2x2 images: a linear layer to 5 features, and a cosine head."""

    def make(seed: int = 0) -> FlatModel:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            body = nn.Sequential(nn.Flatten(), nn.Linear(4, WIDTH))
            return FlatModel(Classifier(body, CosineHead(WIDTH, CLASSES, TAU)))

    return make


# The loss and its gradients


class Inputs(NamedTuple):
    """Features u, the head's rows W, labels y, the logits f_G and f_P, and two numbers."""

    u: Tensor
    W: Tensor
    y: Tensor
    f_g: Tensor
    f_p: Tensor
    tau: float
    lam: float


def inputs(kind: str, dtype: torch.dtype) -> Inputs:
    """In the extreme ones, z reaches 80 and f_G - f_P reaches 160, with features along rows."""
    draw = torch.Generator().manual_seed(7)
    count, tau = 1 if kind == "single" else 9, 1 / 80 if kind == "extreme" else TAU
    u, W = 3 * torch.randn(count, WIDTH, generator=draw), torch.randn(6, WIDTH, generator=draw)
    y = torch.randint(0, 6, (count,), generator=draw)
    f_G, f_P = (2 * torch.rand(2, count, 6, generator=draw) - 1) / tau
    if kind == "extreme":
        u[0], u[1], f_G[2, 0], f_P[2, 0] = 2 * W[3], -5 * W[int(y[1])], 80.0, -80.0
    elif kind == "one class":
        y[:] = 4
    elif kind == "missing class":
        y = y.clamp(max=3)
    u, W, f_G, f_P = (t.to(dtype) for t in (u, W, f_G, f_P))
    lam = 0.3 if kind == "weighted" else 1.0
    return Inputs(u, W, y, f_G, f_P, tau, lam)


class Seen:
    """As much of a turn as the objective looks at; a teacher's outputs are its own vector."""

    def __init__(self, head: nn.Module, f_G: Tensor, f_P: Tensor) -> None:
        self.net = SimpleNamespace(module=Classifier(nn.Identity(), head))
        self.received = f_G
        self.private = Private({"last": f_P})
        self.memo: dict[str, Any] = {}

    def teacher(self, logits: Tensor) -> Callable[[Batch], Output]:
        return lambda batch: Output(logits, logits)


def ours(i: Inputs) -> Loss:
    """The method's loss, and its gradients of the features and of the head's rows."""
    head = CosineHead(WIDTH, len(i.W), i.tau).to(i.W.dtype)
    with torch.no_grad():
        head.weight.copy_(i.W)
    u = i.u.clone().requires_grad_()
    out, batch = Output(head(u), u), Batch(u, ((i.y, 1.0),))
    r = cast(TurnView, Seen(head, i.f_g, i.f_p))
    loss = LfD(lam=i.lam).objective(r, out, batch).loss(out, i.y)
    du, dW = torch.autograd.grad(loss, (u, head.weight))
    return loss.detach(), du, dW


def paper(i: Inputs) -> Loss:
    """Eqs. 8 and 10 word by word in double precision, by autograd."""
    u, W = (t.double().clone().requires_grad_() for t in (i.u, i.W))
    cos = u @ W.T / (u.square().sum(1).sqrt()[:, None] * W.square().sum(1).sqrt())
    z = (cos - 0.15 * F.one_hot(i.y, len(W)).double()) / i.tau
    f_D = i.f_p.double().log_softmax(1) - i.f_g.double().log_softmax(1)
    yhat = (-f_D).softmax(1)
    log_p = z - torch.logsumexp(z, 1, keepdim=True)
    true = -log_p[torch.arange(len(z)), i.y]
    loss = (true - i.lam * (yhat * log_p).sum(1)).mean()
    du, dW = torch.autograd.grad(loss, (u, W))
    return loss.detach(), du, dW


def closed_form(i: Inputs) -> tuple[Tensor, Tensor]:
    """dz = 2p - Y - ŷ, G = dz/τ; du = (G Ŵ - (Σ_j G_j cos_j) û)/‖u‖, and likewise for W."""
    u, W = i.u.double(), i.W.double()
    u_hat, W_hat = u / u.norm(dim=1, keepdim=True), W / W.norm(dim=1, keepdim=True)
    cos, Y = u_hat @ W_hat.T, F.one_hot(i.y, len(W)).double()
    p = ((cos - 0.15 * Y) / i.tau).softmax(1)
    yhat = (i.f_g.double() - i.f_p.double()).softmax(1)
    G = ((1 + i.lam) * p - Y - i.lam * yhat) / i.tau / len(u)
    du = (G @ W_hat - (G * cos).sum(1, keepdim=True) * u_hat) / u.norm(dim=1, keepdim=True)
    dW = (G.T @ u_hat - (G * cos).sum(0)[:, None] * W_hat) / W.norm(dim=1, keepdim=True)
    return du, dW


def near(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Relative to the largest number."""
    return bool((a.double() - b).abs().max() <= tolerance * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize(
    "kind", ["random", "extreme", "one class", "missing class", "single", "weighted"]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_loss_and_gradients_are_the_papers(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    i = inputs(kind, dtype)
    for got, wanted in zip(ours(i), paper(i), strict=True):
        assert near(got, wanted, tolerance)
    for got, wanted in zip(ours(i)[1:], closed_form(i), strict=True):
        assert near(got, wanted, tolerance)


def test_the_target_by_hand() -> None:
    """τ = 0.1; the last model made class 0 likelier than the global one, by ln 3.

    f_G = (0, 0, 0), f_P = (ln 3, 0, 0): ŷ = softmax(-ln 3, 0, 0) = (1, 3, 3)/7.
    A margin on both cancels. With a temperature of 1/2, ŷ = softmax(-2 ln 3, 0, 0) = (1, 9, 9)/19.
    """
    f_G, f_P = torch.zeros(1, 3), torch.tensor([[math.log(3), 0.0, 0.0]])
    margin = torch.tensor([[1.5, 0.0, 0.0]])
    for target in (drift_target(f_G, f_P), drift_target(f_G - margin, f_P - margin)):
        assert target.tolist()[0] == pytest.approx([1 / 7, 3 / 7, 3 / 7])
    assert drift_target(f_G, f_P, 0.5).tolist()[0] == pytest.approx([1 / 19, 9 / 19, 9 / 19])


# Turns


def logits(vector: Tensor, x: Tensor, layout: Any) -> Tensor:
    """The network `cosine` as a function of its vector, in the vector's precision."""
    at = {entry.name: vector[entry.span].view(entry.shape) for entry in layout.entries}
    u = x @ at["body.1.weight"].T + at["body.1.bias"]
    W = at["head.weight"]
    lengths: Tensor = u.norm(dim=1, keepdim=True) * W.norm(dim=1)
    return u @ W.T / lengths / TAU


def descend(
    net: FlatModel,
    w: Tensor,
    data: Examples,
    yhat: Tensor | None,
    margin: float = 0.15,
    lam: float = 1.0,
) -> Tensor:
    """Three full-batch steps of torch's SGD with momentum, in double precision."""
    x, Y = data.x.flatten(1).double() / 255, F.one_hot(data.y, CLASSES).double()
    w = w.detach().double().requires_grad_()
    optimiser = torch.optim.SGD([w], lr=LR, momentum=0.9)
    for _ in range(3):
        optimiser.zero_grad()
        log_p = (logits(w, x, net.layout) - margin / TAU * Y).log_softmax(1)
        target = Y if yhat is None else Y + lam * yhat
        (-(target * log_p).sum(1).mean()).backward()
        optimiser.step()
    return w.detach()


def drift(net: FlatModel, G: Tensor, P: Tensor, data: Examples, tau_drift: float = 1.0) -> Tensor:
    x = data.x.flatten(1).double() / 255
    f_G, f_P = (logits(v.double(), x, net.layout).log_softmax(1) for v in (G, P))
    return ((f_G - f_P) / tau_drift).softmax(1)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b, atol=5e-6)


@pytest.mark.parametrize(
    ("text", "options", "tau_drift"),
    [
        ("lfd", {}, 1.0),
        ("lfd(margin=0)", {"margin": 0.0}, 1.0),
        ("lfd(lam=0.5)", {"lam": 0.5}, 1.0),
        ("lfd(tau_drift=0.1)", {}, 0.1),
    ],
)
def test_three_turns_learn_against_the_last_one(
    text: str,
    options: dict[str, float],
    tau_drift: float,
    cosine: Nets,
    examples: Data,
    trainer: Make,
    turn: Take,
) -> None:
    """The first has no last model and no second term; the others use the turn before."""
    net, data = cosine(), examples(8)
    device = trainer(text, net, data)
    private, last = Private(), None
    for number, seed in enumerate((1, 2, 3)):
        received = cosine(seed).vector
        answer = turn(device, private, received=received, number=number, epochs=3, batch_size=8)
        yhat = None if last is None else drift(net, received, last, data, tau_drift)
        assert close(answer.upload, descend(net, received, data, yhat, **options))
        assert torch.equal(answer.private.tensor("lfd.last"), answer.upload)
        private, last = answer.private, answer.upload


def test_a_uniform_first_target_is_label_smoothing_with_half_of_the_mass(
    cosine: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    net, data = cosine(), examples(8)
    received = net.vector.clone()
    uniform = torch.full((8, CLASSES), 1 / CLASSES, dtype=torch.float64)
    answer = turn(trainer("lfd(first=uniform)", net, data), epochs=3, batch_size=8)
    assert close(answer.upload, descend(net, received, data, uniform))
    x, Y = data.x.flatten(1).double() / 255, F.one_hot(data.y, CLASSES).double()
    z = logits(received.double(), x, net.layout) - 0.15 / TAU * Y
    smooth = 2 * F.cross_entropy(z, data.y, label_smoothing=0.5)
    once = turn(trainer("lfd(first=uniform)", net, data), received=received, batch_size=8)
    assert once.scalars["loss"] == pytest.approx(float(smooth), rel=1e-5)


def test_without_the_regulariser_only_the_margin_is_left(
    cosine: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    net, data = cosine(), examples(8)
    received = net.vector.clone()
    device = trainer("lfd(reg=false)", net, data)
    answer = turn(device, Private({"lfd.last": cosine(5).vector}), epochs=3, batch_size=8)
    assert close(answer.upload, descend(net, received, data, None))
    assert not turn(device).private


def test_without_margin_and_regulariser_it_is_fedavg_bit_for_bit(
    cosine: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    uploads = [
        turn(trainer(text, cosine(), examples(9)), epochs=2).upload
        for text in ("lfd(margin=0, reg=false)", "fedavg")
    ]
    assert torch.equal(uploads[0], uploads[1])


def test_the_two_fixed_models_run_over_the_data_once_a_turn(
    cosine: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Three passes of three batches: the regulariser adds two forward passes of 12 examples."""
    seen: dict[str, list[int]] = {}
    for text in ("lfd", "lfd(reg=false)"):
        net = cosine()
        sizes = seen.setdefault(text, [])
        body = net.module.get_submodule("body")
        body.register_forward_hook(lambda m, x, out, s=sizes: s.append(len(out)))
        private = Private({"lfd.last": cosine(1).vector})
        turn(trainer(text, net, examples(12)), private, epochs=3)
    assert sorted(seen["lfd"]) == sorted([*seen["lfd(reg=false)"], 12, 12])


def test_mixtures_have_targets_of_their_own(
    cosine: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """One step of all examples: m L(y_a) + (1 - m) L(y_b), with ŷ of the mixed inputs."""
    observer, batches = observing()
    net, data = cosine(), examples(8)
    G, P = cosine(1).vector, cosine(2).vector
    device = trainer(Stack((LfD(), Mixup(alpha=1.0), observer)), net, data)
    answer = turn(device, Private({"lfd.last": P}), received=G, batch_size=8)
    (batch,) = batches
    w, x = G.double().requires_grad_(), batch.x.flatten(1).double()
    f_G, f_P = (logits(v.double(), x, net.layout) for v in (G, P))
    yhat, loss = (f_G - f_P).softmax(1), torch.zeros((), dtype=torch.float64)
    for y, m in batch.targets:
        Y = F.one_hot(y, CLASSES).double()
        log_p = (logits(w, x, net.layout) - 0.15 / TAU * Y).log_softmax(1)
        loss = loss - m * ((Y + yhat) * log_p).sum(1).mean()
    (g,) = torch.autograd.grad(loss, w)
    assert len(batch.targets) == 2
    assert answer.scalars["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert close(answer.upload, w.detach() - LR * g)


def test_the_last_model_is_kept_though_its_update_came_too_late(
    cosine: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    device = trainer("lfd", cosine(), examples(8))
    answer = turn(device)
    assert device.method.kept_at_once(Private(), answer.private).keys() == {"lfd.last"}


def test_it_composes_with_pulls_and_with_a_coordinators_step(
    cosine: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """The pull changes the training; the coordinator's half does not."""
    data, private = examples(8), Private({"lfd.last": cosine(1).vector})
    plain, pulled, stepped = (
        turn(trainer(text, cosine(), data), private, epochs=2).upload
        for text in ("lfd", "lfd+fedprox(mu=0.5)", "lfd+fedadam")
    )
    assert torch.equal(plain, stepped)
    assert not torch.equal(plain, pulled)


def test_updates_count_by_their_examples() -> None:
    assert method("lfd").weight({"examples": 7.0}) == 7.0


# Mistakes


def test_a_network_without_a_cosine_head_is_refused_with_the_remedy(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    with pytest.raises(MethodError, match=r'^lfd .* set head = "cosine" .* for the model$'):
        turn(trainer("lfd", plain(), examples(4)))


@pytest.mark.parametrize(
    ("option", "rule"),
    [
        ("margin=-0.1", "margin must lie from 0 to below 2"),
        ("margin=2", "margin must lie from 0 to below 2"),
        ("lam=0", "lam must be above 0; reg=false leaves the regulariser out"),
        ("tau_drift=0", "tau_drift must be above 0"),
        ("first=never", "must be one of skip, uniform; got 'never'"),
        ("reg=perhaps", "must be true or false, got 'perhaps'"),
    ],
)
def test_bad_options_are_refused(option: str, rule: str) -> None:
    with pytest.raises(MethodError, match=rule):
        method(f"lfd({option})")
