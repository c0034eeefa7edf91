"""LfD: its loss and gradients in double precision, three turns against a plain loop, its options."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.methods import Private, Stack, method
from fededge.methods.base import Batch, Method, Objective, Output, Round
from fededge.methods.lfd import LfD, drift_target
from fededge.methods.mixup import Mixup
from fededge.models.base import Classifier
from fededge.models.heads import CosineHead
from fededge.training import Answer, Examples, Trainer

Nets = Callable[..., FlatModel]
Data = Callable[..., Examples]
Make = Callable[..., Trainer]
Take = Callable[..., Answer]

CLASSES, WIDTH, TAU = 3, 5, 0.1


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


def case(kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
    """Features, head, labels, the logits f_G and f_P, and tau, in double precision."""
    draw = torch.Generator().manual_seed(7)
    count = 1 if kind == "single" else 9
    tau = 1 / 80 if kind == "extreme" else TAU  # |z| up to 80, and f_G - f_P up to 160
    u = 3 * torch.randn(count, WIDTH, generator=draw, dtype=torch.float64)
    W = torch.randn(6, WIDTH, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 6, (count,), generator=draw)
    if kind == "extreme":
        u[0], u[1] = 2 * W[3], -5 * W[int(y[1])]
    if kind == "one class":
        y[:] = 4
    if kind == "missing class":
        y = y.clamp(max=3)
    f_G, f_P = (2 * torch.rand(2, count, 6, generator=draw, dtype=torch.float64) - 1) / tau
    return u, W, y, f_G, f_P, tau


CASES = ("random", "extreme", "one class", "missing class", "single")


def paper(
    u: Tensor, W: Tensor, y: Tensor, f_G: Tensor, f_P: Tensor, tau: float, lam: float = 1.0
) -> Tensor:
    """Eqs. 8 and 10 word by word: f_D, ŷ = σ(-f_D), and two cross entropies of one z."""
    cos = (u @ W.T) / (u.square().sum(1).sqrt()[:, None] * W.square().sum(1).sqrt())
    z = (cos - 0.15 * F.one_hot(y, len(W))) / tau
    f_D = f_P.log_softmax(1) - f_G.log_softmax(1)
    yhat = (-f_D).exp() / (-f_D).exp().sum(1, keepdim=True)
    log_p = z - torch.logsumexp(z, 1, keepdim=True)
    true = -log_p[torch.arange(len(y)), y]
    return (true - lam * (yhat * log_p).sum(1)).mean()


def ours(
    u: Tensor, W: Tensor, y: Tensor, f_G: Tensor, f_P: Tensor, tau: float, lam: float = 1.0
) -> Tensor:
    """The method's own objective, for a network whose two teachers give these logits."""
    head = CosineHead(WIDTH, len(W), tau).to(u.dtype)
    del head.weight
    head.weight = W  # type: ignore[assignment]
    teachers = {"G": f_G, "P": f_P}
    r = SimpleNamespace(
        net=SimpleNamespace(module=Classifier(nn.Identity(), head)),
        received="G",
        private=SimpleNamespace(tensor=lambda name: "P", __contains__=None),
        memo={},
        teacher=lambda name: lambda batch: Output(teachers[name], teachers[name]),
    )
    r.private = cast(Private, {"last": "P"})
    r.private = _Last()
    batch, out = Batch(u, ((y, 1.0),)), Output(head(u), u)
    return LfD(lam=lam).objective(cast(Round, r), out, batch).loss(out, y)


class _Last(dict[str, str]):
    def __init__(self) -> None:
        super().__init__(last="P")

    def tensor(self, name: str) -> str:
        return self[name]
