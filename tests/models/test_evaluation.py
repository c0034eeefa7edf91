"""Accuracy counts what it says, and measuring leaves no trace on the module."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fededge.models.evaluation import accuracy, evaluating, predictions


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float() / 2


def threshold(x: list[float]) -> tuple[nn.Module, Tensor]:
    """A network whose label is 1 for inputs above 3, after halving."""
    net = nn.Linear(1, 2, bias=True)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0], [1.0]]))
        net.bias.copy_(torch.tensor([1.5, 0.0]))
    return net, torch.tensor(x).view(-1, 1)


def test_accuracy_is_the_share_of_right_labels() -> None:
    """Inputs 1, 2, 4, 8 get the labels 0, 0, 1, 1; three of the four given ones agree."""
    net, x = threshold([1, 2, 4, 8])
    assert predictions(net, Half(), x).tolist() == [0, 0, 1, 1]
    assert accuracy(net, Half(), x, torch.tensor([0, 1, 1, 1])) == 0.75


def test_many_batches_give_what_one_gives() -> None:
    net, x = threshold([float(i % 7) for i in range(601)])
    whole = predictions(net, Half(), x, batch=601)
    assert torch.equal(predictions(net, Half(), x), whole)
    assert torch.equal(predictions(net, Half(), x, batch=1), whole)


def test_no_inputs_have_no_accuracy() -> None:
    net, x = threshold([])
    assert math.isnan(accuracy(net, Half(), x, torch.empty(0, dtype=torch.int64)))
    assert predictions(net, Half(), x).shape == (0,)


def test_dropout_is_off_and_each_part_gets_its_own_mode_back() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4))
    net[1].eval()
    x = torch.ones(8, 4)
    with evaluating(net):
        assert torch.equal(net(x), net(x))
    assert [net.training, net[0].training, net[1].training] == [True, True, False]


def test_running_statistics_and_gradients_are_left_alone() -> None:
    net = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with evaluating(net):
        out = net(torch.randn(5, 1))
    assert not out.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_the_mode_comes_back_when_the_network_fails() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    try:
        predictions(net, Half(), torch.ones(2, 5))
    except RuntimeError:
        assert net.training
    else:
        raise AssertionError("a wrong shape must not pass")
