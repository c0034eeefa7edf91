"""FedROD's two heads against a plain loop in double precision."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.methods import Private, method
from fededge.models.base import Classifier
from fededge.models.head import CosineHead
from tests.training_fixtures import Data, Make, Take


def two_layers(bias: bool = True) -> FlatModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(2)
        body = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh())
        return FlatModel(Classifier(body, nn.Linear(5, 3, bias=bias)))


def parts(net: FlatModel, w: Tensor) -> Classifier:
    """The network with these values, in double precision and apart from the flat vector."""
    module = copy.deepcopy(net.module)
    module.load_state_dict(net.layout.views(w.clone()))
    double = module.double()
    assert isinstance(double, Classifier)
    return double


@pytest.mark.parametrize("gamma", [1.0, 0.5])
@pytest.mark.parametrize("bias", [True, False])
def test_two_turns_are_the_plain_loop(
    bias: bool, gamma: float, examples: Data, trainer: Make, turn: Take
) -> None:
    """Each part has its own optimiser: nothing of the personal head's loss reaches the others."""
    net, data = two_layers(bias), examples(8, held=5)
    device, private = trainer(f"fedrod(gamma={gamma})", net, data), Private()
    x, w = data.x.double() / 255, net.vector.clone()
    counts = torch.bincount(data.y, minlength=3).double()
    prior = torch.where(counts > 0, counts, 1e-12).pow(gamma).log()
    P = nn.Linear(5, 3, bias=bias).double()
    for parameter in P.parameters():
        nn.init.zeros_(parameter)
    for number in range(2):
        module = parts(net, w)
        generic = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
        personal = torch.optim.SGD(P.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
        for _ in range(3):
            generic.zero_grad()
            F.cross_entropy(module(x) + prior, data.y).backward()
            with torch.no_grad():
                z, h = module(x), module.features(x)
            personal.zero_grad()
            F.cross_entropy(z + P(h), data.y).backward()
            generic.step()
            personal.step()
        answer = turn(
            device,
            private,
            received=w,
            number=number,
            epochs=3,
            batch_size=8,
            weight_decay=0.01,
        )
        private = answer.private
        expected = net.layout.vector({k: v.float() for k, v in module.state_dict().items()})
        assert torch.allclose(answer.upload, expected, atol=2e-6)
        own = torch.cat([p.detach().reshape(-1) for p in P.parameters()])
        assert torch.allclose(private.tensor("fedrod.head").double(), own, atol=2e-6)
        assert own.abs().min() > 0
        held = data.held_x.double() / 255
        both = module(held) + P(module.features(held))
        assert torch.allclose(parts(net, answer.personal)(held), both, atol=1e-5)
        w = answer.upload + 0.1


def test_the_personal_head_changes_nothing_of_what_is_sent(
    deep: Callable[..., FlatModel], examples: Data, trainer: Make, turn: Take
) -> None:
    """The upload is balanced softmax's bit for bit, with batch norm and dropout."""
    data, w = examples(13, side=16), deep().vector.clone()
    private = Private({"fedrod.head": torch.randn(27)})
    rod = turn(trainer("fedrod", deep(), data), private, received=w, epochs=2)
    assert torch.equal(
        rod.upload, turn(trainer("balanced", deep(), data), received=w, epochs=2).upload
    )
    assert not torch.equal(rod.upload, rod.personal)


def test_the_personal_model_is_one_of_the_federations_network(
    examples: Data, trainer: Make, turn: Take
) -> None:
    """The body as sent, the head as G + P."""
    net = two_layers()
    device = trainer("fedrod", net, examples(8))
    assert device.deployed is net
    answer = turn(device)
    head = net.layout.mask(net.layout.inside("head")).bool()
    assert torch.equal(answer.personal[~head], answer.upload[~head])
    difference = answer.personal[head] - answer.upload[head]
    assert torch.allclose(difference, answer.private.tensor("fedrod.head"), atol=1e-6)


@pytest.mark.parametrize("cosine", [True, False])
def test_a_network_without_a_linear_head_is_one_sentence(
    cosine: bool, examples: Data, trainer: Make, turn: Take
) -> None:
    headless = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    module = Classifier(nn.Flatten(), CosineHead(4, 3)) if cosine else headless
    with pytest.raises(MethodError, match="fedrod needs a linear head: set head to linear"):
        turn(trainer("fedrod", FlatModel(module), examples(4)))


def test_a_negative_exponent_is_refused() -> None:
    with pytest.raises(MethodError, match=r"^fedrod\(gamma=-1.0\): gamma must be at least 0$"):
        method("fedrod(gamma=-1)")
