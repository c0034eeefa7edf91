"""FedProx by hand, against autograd in double precision, and against FedAvg where mu is 0."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.methods import method
from fededge.methods.fedprox import FedProx
from fededge.training import Examples
from tests.training_fixtures import Data, Make, Nets, Take


def test_two_steps_by_hand(trainer: Make, turn: Take) -> None:
    """Logits z = w x of two classes, one example x = 1 of class 0, w_t = (0, 0), lr 1, mu 0.5.

    Step 1: p = (1/2, 1/2), gradient (-1/2, 1/2), no pull at w_t:  w = (0.5, -0.5).
    Step 2: p_0 = 1/(1 + e^-1) = 0.7310586, gradient (-0.2689414, 0.2689414);
    the pull 0.5 · (w - w_t) = (0.25, -0.25) leaves (-0.0189414, 0.0189414):
    w = (0.5189414, -0.5189414). Without the pull it would be (0.7689414, -0.7689414).
    """
    net = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False)))
    x, y = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    data = Examples(x, y, x[:0], y[:0], 2)
    for name, value in (("fedprox(mu=0.5)", 0.5189414), ("fedavg", 0.7689414)):
        device = trainer(name, net, data)
        answer = turn(device, received=torch.zeros(2), epochs=2, lr=1.0, momentum=0.0)
        assert answer.upload.tolist() == pytest.approx([value, -value], abs=1e-6)


def reference(w: Tensor, x: Tensor, y: Tensor, mu: float, steps: int) -> Tensor:
    """h(w) = F(w) + mu/2 ‖w - w_t‖² by autograd, momentum 0.9, weight decay 0.01, lr 0.1."""
    start, w, buffer = w.double(), w.double(), torch.zeros(len(w), dtype=torch.float64)
    for _ in range(steps):
        w = w.detach().requires_grad_()
        logits = x.double() @ w[:12].view(3, 4).T + w[12:]
        h = F.cross_entropy(logits, y) + mu / 2 * (w - start).square().sum()
        (g,) = torch.autograd.grad(h, w)
        buffer = 0.9 * buffer + g + 0.01 * w.detach()
        w = w.detach() - 0.1 * buffer
    return w


@pytest.mark.parametrize("mu", [0.0, 0.1, 2.0])
def test_it_follows_the_gradient_of_its_objective(
    mu: float,
    plain: Nets,
    examples: Data,
    trainer: Make,
    turn: Take,
) -> None:
    net, data = plain(), examples(6)
    received = net.vector.clone()
    device = trainer(FedProx(mu=mu), net, data)
    answer = turn(device, epochs=5, batch_size=6, weight_decay=0.01, received=received)
    expected = reference(received, data.x.flatten(1) / 255, data.y, mu, steps=5)
    assert torch.allclose(answer.upload.double(), expected, atol=1e-6)


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(MethodError, match=r"^fedprox\(mu=-1.0\): mu must be at least 0$"):
        method("fedprox(mu=-1)")
