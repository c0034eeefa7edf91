"""Fused and reordered networks compute the same values as the original networks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fededge.models import build
from fededge.models.base import Classifier
from fededge.models.layer_fusion import (
    FastMaxPool,
    FusedConvolution,
    batch_independent,
    for_inference,
    for_training,
    pooled_first,
)
from fededge.models.precision import channels_last
from tests.zoo_network import zoo_network

Order = Callable[[nn.Module], nn.Module]

POOLED = ("lenet", "lenet5", "lfd-cnn", "cnn4", "tfcnn", "vgg8", "alexnet32")


def images(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def count(module: nn.Module, kind: type[nn.Module] = FastMaxPool) -> int:
    return sum(isinstance(part, kind) for part in module.modules())


def test_the_convolutions_of_the_zoo_are_pooled_first() -> None:
    counts = {name: count(for_inference(build(name, 10, (3, 32, 32), 0))) for name in POOLED}
    assert all(counts.values()), counts
    assert counts["lenet"] == 2


@pytest.mark.parametrize(
    ("order", "vgg8", "alexnet32"),
    [(for_training, 2, 1), (for_inference, 1, 0)],
    ids=["training", "inference"],
)
def test_convolutions_of_few_channels_are_fused_with_their_pooling(
    order: Order, vgg8: int, alexnet32: int
) -> None:
    counts = {
        name: count(order(build(name, 10, (3, 32, 32), 0)), FusedConvolution) for name in POOLED
    }
    small = {"lenet": 2, "lenet5": 2, "lfd-cnn": 2, "cnn4": 2, "tfcnn": 2}
    assert counts == small | {"vgg8": vgg8, "alexnet32": alexnet32}


@pytest.mark.parametrize("side", [28, 31])
@pytest.mark.parametrize("name", ["lenet", "cnn4", "vgg8", "resnet8", "mlpnet"])
def test_networks_for_inference_agree_with_float64(name: str, side: int) -> None:
    """With a side of 31, pooling ignores the last row and column."""
    net = build(name, 10, (1, side, side), 0).eval()
    x = channels_last(images((5, 1, side, side)))
    kept = x.clone()
    with torch.no_grad():
        found = for_inference(net)(x)
        torch.testing.assert_close(found, net(x), rtol=0, atol=2e-6)
        expected = copy.deepcopy(net).double()(x.double())
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)
    assert torch.equal(x, kept)


def test_a_network_for_inference_is_not_fused_when_a_gradient_is_computed() -> None:
    net = build("lenet", 10, (1, 28, 28), 0)
    x = channels_last(images((5, 1, 28, 28)))
    assert torch.equal(for_inference(net)(x), net(x))
    assert for_inference(net)(x).requires_grad


LAYERS = pytest.mark.parametrize(
    ("convolution", "pool", "fused"),
    [
        (nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), True),
        (nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.MaxPool2d(2), True),
        (nn.Conv2d(2, 3, (3, 2)), nn.MaxPool2d(2), True),
        (nn.Conv2d(2, 3, 3), nn.MaxPool2d(2, ceil_mode=True), True),
        (nn.Conv2d(2, 3, 3, padding="same"), nn.MaxPool2d(2), False),
        (nn.Conv2d(2, 3, 3, padding=(1, 0)), nn.MaxPool2d(2), False),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.MaxPool2d(2), False),
        (nn.Conv2d(2, 3, 3, stride=2), nn.MaxPool2d(2), False),
        (nn.Conv2d(2, 3, 3, dilation=2), nn.MaxPool2d(2), False),
        (nn.Conv2d(2, 4, 3, groups=2), nn.MaxPool2d(2), False),
        (nn.Conv2d(2, 3, 3), nn.MaxPool2d(3, 2), False),
        (nn.Conv2d(20, 3, 3), nn.MaxPool2d(2), True),
        (nn.Conv2d(65, 3, 3), nn.MaxPool2d(2), False),
    ],
)


@LAYERS
@pytest.mark.parametrize("side", [8, 9])
def test_any_convolution_agrees_with_float64(
    convolution: nn.Conv2d, pool: nn.Module, fused: bool, side: int
) -> None:
    stages = nn.Sequential(convolution, nn.ReLU(), pool)
    quick = for_inference(stages)
    assert count(quick, FusedConvolution) == fused
    assert list(quick.parameters()) == list(stages.parameters())
    x = images((2, convolution.in_channels, side, side))
    with torch.no_grad():
        found, one = quick(x), quick(x[0])
        expected = copy.deepcopy(stages).double()(x.double())
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(one.double(), expected[0], rtol=0, atol=2e-6)


def drawn_from(values: Tensor, like: Tensor, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return values[torch.randint(len(values), like.shape, generator=draw)]


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """The gradients with respect to the images and all parameters."""
    x = x.detach().requires_grad_()
    loss = module(x).square().sum()
    return list(torch.autograd.grad(loss, [x, *module.parameters()]))


@LAYERS
@pytest.mark.parametrize("side", [8, 9])
def test_the_gradients_of_any_convolution_agree_with_float64(
    convolution: nn.Conv2d, pool: nn.Module, fused: bool, side: int
) -> None:
    """Float32 adds these numbers exactly, so both precisions have the same maxima."""
    stages = copy.deepcopy(nn.Sequential(convolution, nn.ReLU(), pool))
    values = torch.tensor([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0])
    for seed, parameter in enumerate(stages.parameters()):
        parameter.data = drawn_from(values, parameter, seed)
    quick = for_training(stages)
    assert count(quick, FusedConvolution) == fused
    assert list(quick.parameters()) == list(stages.parameters())
    x = drawn_from(values, torch.empty(2, convolution.in_channels, side, side), 9)
    assert torch.equal(quick(x), stages(x))
    for found in (gradients(quick, x), gradients(quick, channels_last(x))):
        expected = gradients(copy.deepcopy(stages).double(), x.double())
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["lenet", "lenet5", "cnn4", "tfcnn", "vgg8"])
def test_the_gradients_of_a_network_for_training_agree_with_float64(name: str) -> None:
    net = build(name, 10, (3, 32, 32), 0)
    x = channels_last(images((3, 3, 32, 32)))
    torch.testing.assert_close(for_training(net)(x), net(x), rtol=0, atol=2e-6)
    expected = gradients(copy.deepcopy(net).double(), x.double())
    for mine, theirs in zip(gradients(for_training(net), x), expected, strict=True):
        assert (mine - theirs).norm() < 1e-4 * theirs.norm()


def test_a_network_for_training_is_fused_without_a_gradient_too() -> None:
    net = build("lenet", 10, (1, 28, 28), 0)
    x = channels_last(images((5, 1, 28, 28)))
    with torch.no_grad():
        assert torch.equal(for_training(net)(x), for_inference(net)(x))


@pytest.mark.parametrize("order", [for_training, for_inference])
def test_a_convolution_with_a_hook_is_not_fused(order: Order) -> None:
    stages, called = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)), []
    stages[0].register_forward_hook(lambda *_: called.append(True))
    with torch.no_grad():
        order(stages)(images((1, 1, 8, 8)))
    assert called == [True]


@pytest.mark.parametrize("name", ["lenet", "lenet5", "vgg8"])
def test_pooling_first_gives_the_same_bits(name: str) -> None:
    """Logits, and the gradients of all parameters."""
    plain = build(name, 10, (3, 32, 32), 0)
    other = copy.deepcopy(plain)
    network = pooled_first(other)
    assert [type(stage) for stage in network.get_submodule("body").children()] != [
        type(stage) for stage in plain.get_submodule("body").children()
    ]
    x = channels_last(images((6, 3, 32, 32)))
    for module in (plain, network):
        module(x).square().sum().backward()
    assert torch.equal(network(x), plain(x))
    for mine, theirs in zip(other.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_nan_stays_nan() -> None:
    x = images((1, 2, 4, 4))
    x[0, 1, 2, 3] = float("nan")
    stages = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    assert torch.equal(for_inference(stages)(x).isnan(), stages(x).isnan())
    assert int(for_inference(stages)(x).isnan().sum()) == 1


@pytest.mark.parametrize("side", [6, 7])
@pytest.mark.parametrize(
    ("pool", "quick"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d(2, ceil_mode=True), True),
        (nn.MaxPool2d(3, 2), False),
        (nn.MaxPool2d(2, 1), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.AvgPool2d(2), False),
    ],
)
def test_any_pooling_gives_the_same_bits(pool: nn.Module, quick: bool, side: int) -> None:
    """Mean pooling stays behind the ReLU: the two do not commute."""
    stages = nn.Sequential(nn.ReLU(), pool)
    first = next(iter(pooled_first(stages).children()))
    assert (first is pool) == isinstance(pool, nn.MaxPool2d)
    assert count(for_inference(stages)) == quick
    x = images((2, 3, side, side))
    assert torch.equal(for_inference(stages)(x), stages(x))
    assert torch.equal(pooled_first(stages)(x), stages(x))


def test_parameters_are_shared_and_the_original_network_is_unchanged() -> None:
    net = zoo_network("lenet", 10, (1, 28, 28), 0)
    before = [type(stage) for stage in net.body.children()]
    for other in (for_inference(net), pooled_first(net), for_training(net)):
        assert isinstance(other, Classifier)
        assert [id(p) for p in other.parameters()] == [id(p) for p in net.parameters()]
    assert [type(stage) for stage in net.body.children()] == before


def test_hooks_are_still_called() -> None:
    net, called = build("lenet", 10, (1, 28, 28), 0), []
    for name in ("", "body", "body.0", "head"):
        net.get_submodule(name).register_forward_hook(lambda *_, name=name: called.append(name))
    pooled_first(net)(images((1, 1, 28, 28)))
    assert called == ["body.0", "body", "head", ""]


def test_a_network_without_pooling_stays_itself() -> None:
    net = build("resnet8", 10, (3, 32, 32), 0)
    assert for_inference(net) is net
    assert pooled_first(net) is net
    assert for_training(net) is net


def test_a_network_is_batch_independent_only_if_all_its_layers_are() -> None:
    """Batch norm and dropout are not; an unknown module may not be."""

    class Own(nn.Module):
        pass

    shape = (3, 32, 32)
    assert all(
        batch_independent(zoo_network(name, 10, shape, 0).body)
        for name in ("lenet", "cnn4", "mlpnet")
    )
    assert not any(
        batch_independent(zoo_network(name, 10, shape, 0).body) for name in ("resnet8", "alexnet32")
    )
    assert not batch_independent(nn.Sequential(nn.ReLU(), Own()))


@pytest.mark.parametrize("order", [for_training, for_inference])
def test_a_flop_counter_counts_a_fused_convolution(order: Order) -> None:
    module, x = build("lenet", 10, (1, 28, 28), 0), torch.randn(4, 1, 28, 28)
    with torch.no_grad():
        with FlopCounterMode(display=False) as plain:
            module(x)
        with FlopCounterMode(display=False) as quick:
            order(module)(x)
    assert quick.get_total_flops() == plain.get_total_flops() > 0


def test_a_flop_counter_counts_the_gradient_of_a_fused_convolution() -> None:
    module, x = build("lenet", 10, (1, 28, 28), 0), torch.randn(4, 1, 28, 28)
    with FlopCounterMode(display=False) as plain:
        module(x).sum().backward()
    with FlopCounterMode(display=False) as quick:
        for_training(module)(x).sum().backward()
    assert quick.get_total_flops() == plain.get_total_flops() > 0
