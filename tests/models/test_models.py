"""The networks of the zoo: sizes from the papers, shapes, seeds, and the mistakes of a user."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fededge.errors import ConfigError
from fededge.models import Classifier, Preprocess, build, names
from fededge.models.zoo import ZOO
from fededge.spec import ModelSpec

GREY = (1, 28, 28)
COLOUR = (3, 32, 32)


def size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        # 16*25+16, 16*16*25+16, 256*120+120, 120*84+84, 84*10+10
        ("lenet", GREY, 416 + 6416 + 30840 + 10164 + 850),
        # 784*1024+1024, 1024*1024+1024, 1024*128+128, 128*10+10
        ("mlpnet", GREY, 803840 + 1049600 + 131200 + 1290),
        # the TensorFlow tutorial prints a total of 122,570
        ("tfcnn", COLOUR, 122570),
    ],
)
def test_number_of_parameters(name: str, shape: tuple[int, int, int], expected: int) -> None:
    """Each network has the parameters counted by hand from its description."""
    assert size(build(name, 10, shape, seed=0)) == expected


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("shape", [GREY, COLOUR, (5, 40, 24)])
def test_logits_are_head_of_features(name: str, shape: tuple[int, int, int]) -> None:
    """Any channels and sides that fit are taken; forward is the head applied to the features."""
    network = build(name, 7, shape, seed=1)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    features = network.features(x)
    assert isinstance(network, Classifier)
    assert features.shape == (3, ZOO[name].width)
    assert torch.equal(network(x), network.head(network.body(x)))
    assert network(x).shape == (3, 7)
    assert network(x).dtype == torch.float32


@pytest.mark.parametrize("name", names())
def test_gradient_reaches_every_parameter(name: str) -> None:
    network = build(name, 10, COLOUR, seed=0)
    x = torch.randn(4, *COLOUR, generator=torch.Generator().manual_seed(0))
    network(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.parametrize("name", names())
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    """The same seed gives the same weights whatever was drawn before, and torch's state stays."""
    first = build(name, 10, GREY, seed=3).state_dict()
    torch.rand(5)
    before = torch.random.get_rng_state()
    second = build(name, 10, GREY, seed=3).state_dict()
    other = build(name, 10, GREY, seed=4).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(("name", "side"), [("lenet", 16), ("mlpnet", 1), ("tfcnn", 18)])
def test_smallest_side_is_the_smallest(name: str, side: int) -> None:
    """LeNet: 16 → 12 → 6 → 2 → 1; TFCNN: 18 → 16 → 8 → 6 → 3 → 1; one pixel less leaves nothing."""
    assert build(name, 2, (1, side, side), seed=0)(torch.zeros(1, 1, side, side)).shape == (1, 2)
    with pytest.raises(ConfigError, match=f"at least {side}x{side}.*{side - 1}x{side}"):
        build(name, 2, (1, side - 1, side), seed=0)


def test_bias_free_head() -> None:
    with_bias = build("lenet", 10, GREY, seed=0)
    without = build("lenet", 10, GREY, seed=0, head="bias-free")
    assert size(with_bias) - size(without) == 10
    assert [key for key, _ in without.head.named_parameters()] == ["weight"]


def test_unknown_names_are_explained() -> None:
    with pytest.raises(ConfigError, match=r"'LeNett'; did you mean 'lenet'.*lenet, mlpnet, tfcnn"):
        build("LeNett", 10, GREY, seed=0)
    with pytest.raises(ConfigError, match=r"'biasfree'; did you mean 'bias-free'"):
        build("lenet", 10, GREY, seed=0, head="biasfree")
    with pytest.raises(ConfigError, match="two classes, got 1"):
        build("lenet", 1, GREY, seed=0)


def test_absurd_size_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(ConfigError, match=r"4,398,0.* parameters"):
        build("mlpnet", 10, (64, 8192, 8192), seed=0)


def spec(mean: tuple[float, ...], std: tuple[float, ...]) -> ModelSpec:
    return ModelSpec("lenet", ("a", "b"), (2, 4, 4), mean, std)


def test_preprocess_is_the_formula() -> None:
    """(x/255 - mean)/std of each channel, against float64 numpy."""
    mean, std = (0.25, 0.5), (0.2, 0.4)
    x = torch.randint(0, 256, (3, 2, 4, 4), generator=torch.Generator().manual_seed(0))
    expected = x.numpy() / 255 - np.reshape(mean, (1, 2, 1, 1))
    expected = expected / np.reshape(std, (1, 2, 1, 1))
    out = Preprocess(spec(mean, std))(x.to(torch.uint8))
    assert out.dtype == torch.float32
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_preprocess_has_no_state_that_travels() -> None:
    module = Preprocess(spec((0.5, 0.5), (1.0, 1.0)))
    assert not module.state_dict()
    assert not list(module.parameters())


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5,), (1.0, 1.0), "mean has 1 values.*2 channels"),
        ((0.5, 0.5), (1.0, 1.0, 1.0), "std has 3 values.*2 channels"),
        ((0.5, float("nan")), (1.0, 1.0), "must be finite"),
        ((0.5, 0.5), (1.0, 0.0), "above zero"),
    ],
)
def test_preprocess_refuses_wrong_statistics(
    mean: tuple[float, ...], std: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocess(spec(mean, std))
