"""A network trains on the device as on the CPU: forward, backward, optimiser, random numbers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import accelerator


class Network(nn.Module):
    """Every kind of layer that the product's networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3, stride=2, groups=2, bias=False),
            nn.GroupNorm(2, 8),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def train(network: nn.Module, x: Tensor, y: Tensor, steps: int) -> list[Tensor]:
    optimiser = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = F.cross_entropy(network(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return losses


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 1, 12, 12, generator=generator), torch.arange(16) % 10


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_network_trains_with_the_numbers_of_the_cpu(
    device: torch.device, memory_format: torch.memory_format
) -> None:
    here = Network()
    there = copy.deepcopy(here).to(device).to(memory_format=memory_format)
    x, y = batch()
    expected = train(here, x, y, 4)
    there_x = x.to(device).to(memory_format=memory_format)
    with accelerator.counting() as counts:
        found = train(there, there_x, y.to(device), 4)
    assert found[0].device.type == "emulated"
    assert counts.launches > 200, "the CPU did the work"
    torch.testing.assert_close(torch.stack(found).cpu(), torch.stack(expected))
    for name, value in here.state_dict().items():
        torch.testing.assert_close(there.state_dict()[name].cpu(), value, rtol=1e-4, atol=1e-5)


def test_other_layers(device: torch.device) -> None:
    here = nn.Sequential(nn.Embedding(11, 5), nn.Dropout(0.0), nn.LayerNorm(5))
    tokens = torch.arange(12).reshape(3, 4) % 11
    found = copy.deepcopy(here).to(device)(tokens.to(device))
    torch.testing.assert_close(found.cpu(), here(tokens))
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8)
    moved = x.to(device)
    found = copy.deepcopy(attention).to(device)(moved, moved, moved)[0]
    torch.testing.assert_close(found.cpu(), attention(x, x, x)[0])


def test_views_share_memory(device: torch.device) -> None:
    x = torch.zeros(4, 6, device=device)
    x[1:3, ::2].t().add_(1.0)
    x.view(2, 12)[1].unfold(0, 3, 3)[0].fill_(5.0)
    x.unbind(0)[0].copy_(torch.arange(6.0))
    expected = torch.zeros(4, 6)
    expected[1:3, ::2] = 1
    expected[2, :3] = 5
    expected[0] = torch.arange(6.0)
    assert torch.equal(x.cpu(), expected)
    assert x.untyped_storage().nbytes() == 4 * 6 * 4


def test_outputs_that_are_given_are_written_and_resized(device: torch.device) -> None:
    a, b = torch.arange(6.0, device=device), torch.ones(6, device=device)
    out = torch.empty(6, device=device)
    before = out.data_ptr()
    assert torch.add(a, b, out=out) is out
    assert out.data_ptr() == before
    empty = torch.empty(0, device=device)
    torch.cat([a, b], out=empty)
    assert torch.equal(empty.cpu(), torch.cat([a.cpu(), b.cpu()]))
    values, indices = torch.empty(0, device=device), torch.empty(0, device=device).long()
    torch.max(a.view(2, 3), 1, out=(values, indices))
    assert values.tolist() == [2.0, 5.0]
    assert indices.tolist() == [2, 2]
    for t in torch._foreach_add([a, b], 1.0):
        assert t.device.type == "emulated"


def test_random_numbers_follow_the_device_s_generator(device: torch.device) -> None:
    cpu = torch.get_rng_state()
    torch.manual_seed(3)
    torch.set_rng_state(cpu)
    dropped = F.dropout(torch.ones(100, device=device), 0.5)
    assert torch.equal(torch.get_rng_state(), cpu), "the CPU's generator was used"
    module = torch.get_device_module("emulated")
    state = module.get_rng_state()
    first = torch.randn(5, device=device).cpu()
    module.set_rng_state(state)
    assert torch.equal(torch.randn(5, device=device).cpu(), first)
    assert 0 < int((dropped == 0).sum()) < 100
    generator = torch.Generator(device).manual_seed(7)
    order = torch.randperm(50, device=device, generator=generator)
    assert order.sort().values.tolist() == list(range(50))
    with pytest.raises(RuntimeError, match="Expected a 'emulated' device type for generator"):
        torch.randperm(50, device=device, generator=torch.Generator())
