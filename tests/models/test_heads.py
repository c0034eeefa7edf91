"""The heads: which there are, and the cosine head against float64 formulas written out."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from fededge.errors import ConfigError
from fededge.model_spec import ModelSpec
from fededge.models import CosineHead, build, heads
from fededge.models.head import head_of
from tests.zoo_network import zoo_network

GREY = (1, 28, 28)
FEATURES = np.random.default_rng(0).normal(size=(6, 5))
FEATURES[2] = 0  # a sample whose features all died


def cosine_head(tau: float = 0.1) -> CosineHead:
    torch.manual_seed(0)
    return CosineHead(5, 4, tau)


def unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: np.ndarray = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return units


def test_every_head_has_its_parameters() -> None:
    shapes = {
        head: [
            (key, tuple(p.shape))
            for key, p in zoo_network("lenet", 10, GREY, 0, head=head).head.named_parameters()
        ]
        for head in heads()
    }
    weight = ("weight", (10, 84))
    assert shapes == {
        "linear": [weight, ("bias", (10,))],
        "bias-free": [weight],
        "cosine": [weight],
    }


def test_the_body_does_not_depend_on_the_head() -> None:
    """The same seed gives the same body under each head, so that heads can be compared."""
    bodies = [zoo_network("lenet", 10, GREY, 3, head=head).body.state_dict() for head in heads()]
    assert all(torch.equal(bodies[0][key], other[key]) for other in bodies for key in other)


def test_cosines_are_the_formula() -> None:
    """Normalised features times normalised rows; a zero feature has no direction, hence zeros."""
    head = cosine_head(tau=0.05)
    features = torch.tensor(FEATURES, dtype=torch.float32)
    expected = unit(FEATURES) @ unit(head.weight.detach().double().numpy()).T
    np.testing.assert_allclose(head.cosines(features).detach().numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(head(features).detach().numpy(), expected / 0.05, atol=2e-5)
    assert not head(features)[2].any()
    assert head.cosines(features).abs().max() <= 1 + 1e-6


def test_gradients_are_the_formula() -> None:
    """With G the gradient of the logits over tau, u and W, hats for what is normalised:

    du = (G Ŵ - sum_j G_j cos_j û) / |u|, dW_j = (sum_b G_bj û_b - sum_b G_bj cos_bj Ŵ_j) / |W_j|;
    a zero feature gets no gradient, and gives none.
    """
    head = cosine_head().double()
    features = torch.tensor(FEATURES, requires_grad=True)
    upstream = np.random.default_rng(1).normal(size=(6, 4))
    head(features).backward(torch.tensor(upstream))
    g, weight = upstream / 0.1, head.weight.detach().numpy()
    u, w = unit(FEATURES), unit(weight)
    cosines = u @ w.T
    lengths = np.linalg.norm(FEATURES, axis=1, keepdims=True)
    du = g @ w - (g * cosines).sum(1, keepdims=True) * u
    du = np.divide(du, lengths, out=np.zeros_like(du), where=lengths > 0)
    dw = (g.T @ u - (g * cosines).sum(0)[:, None] * w) / np.linalg.norm(
        weight, axis=1, keepdims=True
    )
    assert features.grad is not None
    assert head.weight.grad is not None
    np.testing.assert_allclose(features.grad.numpy(), du, atol=1e-12)
    np.testing.assert_allclose(head.weight.grad.numpy(), dw, atol=1e-12)
    assert not features.grad[2].any()


def test_lengths_do_not_count() -> None:
    """Neither of features nor of rows, from the tiny to the huge; the stored rows stay raw."""
    head, features = cosine_head(), torch.tensor(FEATURES, dtype=torch.float32)
    before = head(features)
    torch.testing.assert_close(head(features * 1e-4), before)
    raw = head.weight.detach().clone()
    with torch.no_grad():
        head.weight.mul_(1e6)
    torch.testing.assert_close(head(features), before)
    assert torch.equal(head.weight, raw * 1e6)


def test_a_vector_of_dust_is_a_zero_vector() -> None:
    """1e-20 in each place: its direction is noise, and dividing by its length would explode."""
    head = cosine_head()
    dust = torch.full((1, 5), 1e-20, requires_grad=True)
    logits = head(dust)
    logits.sum().backward()
    assert dust.grad is not None
    assert not logits.any()
    assert not dust.grad.any()


@pytest.mark.parametrize(
    ("text", "tau"), [("cosine", 0.1), ("cosine:0.05", 0.05), ("cosine:1e-3", 0.001)]
)
def test_tau_comes_with_the_name(text: str, tau: float) -> None:
    head = build("lenet", 10, GREY, seed=0, head=text).head
    assert isinstance(head, CosineHead)
    assert head.tau == tau
    spec = ModelSpec("lenet", ("a", "b"), GREY, (0.5,), (0.5,), text)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("biasfree", "no head 'biasfree'; did you mean 'bias-free'"),
        ("", "no head ''"),
        ("linear:3", "only 'cosine' takes a number"),
        ("cosine:", "tau must be a number from 0.0001 to 10000"),
        ("cosine:warm", "tau must be a number"),
        ("cosine: 0.1", "tau must be a number"),
        ("cosine:+1", "tau must be a number"),
        ("cosine:1_0", "tau must be a number"),
        ("cosine:1-", "tau must be a number"),
        ("cosine:0", "tau must be a number"),
        ("cosine:-1", "tau must be a number"),
        ("cosine:nan", "tau must be a number"),
        ("cosine:inf", "tau must be a number"),
    ],
)
def test_heads_that_do_not_exist_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        head_of(text)
