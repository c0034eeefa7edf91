"""MOON: its loss and gradient in double precision, turns against plain loops, its options."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.methods import Private, Stack, method
from fededge.methods.mixup import Mixup
from fededge.methods.moon import Moon, contrastive_loss
from fededge.models.base import Classifier
from fededge.training import Examples
from tests.training_fixtures import Data, Make, Nets, Take, observing

CLASSES, WIDTH, LR = 3, 5, 0.1


@pytest.fixture
def shallow() -> Nets:
    """A factory of networks for 2x2 images: a linear layer to 5 features, and a linear head."""

    def make(seed: int = 0) -> FlatModel:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            body = nn.Sequential(nn.Flatten(), nn.Linear(4, WIDTH))
            return FlatModel(Classifier(body, nn.Linear(WIDTH, CLASSES)))

    return make


# The loss and its gradient


def features(kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """z, z_glob and z_prev; the extreme ones differ in length, and point along each other."""
    draw = torch.Generator().manual_seed(3)
    count = 1 if kind == "single" else 8
    z, z_glob, z_prev = torch.randn(3, count, 6, generator=draw)
    if kind == "extreme":
        z[0], z[1], z[2], z[3] = 80 * z_glob[0], -80 * z_glob[1], 80 * z_prev[2], 80 * z[3]
        z_prev[4], z_glob[5] = 1e-4 * z_prev[4], 1e4 * z_glob[5]
    return z.to(dtype), z_glob.to(dtype), z_prev.to(dtype)


def paper(z: Tensor, z_glob: Tensor, z_prev: Tensor, T: float) -> tuple[Tensor, Tensor]:
    """-log(e^(c⁺/T)/(e^(c⁺/T) + e^(c⁻/T))) in double precision, and its gradient by autograd."""
    z, z_glob, z_prev = (t.double().clone() for t in (z, z_glob, z_prev))
    z.requires_grad_()
    near, far = ((z * o).sum(1) / (z.norm(dim=1) * o.norm(dim=1)) / T for o in (z_glob, z_prev))
    loss = (torch.logsumexp(torch.stack([near, far]), 0) - near).mean()
    (dz,) = torch.autograd.grad(loss, z)
    return loss.detach(), dz


def closed_form(z: Tensor, z_glob: Tensor, z_prev: Tensor, T: float) -> Tensor:
    """dz = σ((c⁻ - c⁺)/T)/(T ‖z‖) · [(ẑ_prev - c⁻ ẑ) - (ẑ_glob - c⁺ ẑ)], divided by the batch."""
    lengths = z.double().norm(dim=1, keepdim=True)
    z, z_glob, z_prev = (F.normalize(t.double(), dim=1) for t in (z, z_glob, z_prev))
    near, far = ((z * o).sum(1, keepdim=True) for o in (z_glob, z_prev))
    scale: Tensor = torch.sigmoid((far - near) / T) / (T * lengths) / len(z)
    return scale * ((z_prev - far * z) - (z_glob - near * z))


def near(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Relative to the largest number."""
    return bool((a.double() - b).abs().max() <= tolerance * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize("kind", ["random", "extreme", "single"])
@pytest.mark.parametrize("T", [0.5, 0.0125])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_loss_and_gradient_are_the_papers(
    kind: str, T: float, dtype: torch.dtype, tolerance: float
) -> None:
    """T = 0.0125 makes similarities of up to 80."""
    z, z_glob, z_prev = features(kind, dtype)
    loss, dz = paper(z, z_glob, z_prev, T)
    z.requires_grad_()
    got = contrastive_loss(z, z_glob, z_prev, T)
    (gradient,) = torch.autograd.grad(got, z)
    assert near(got.detach(), loss, tolerance)
    assert near(gradient, dz, tolerance)
    assert near(gradient, closed_form(z.detach(), z_glob, z_prev, T), tolerance)


def test_the_loss_by_hand() -> None:
    """z along z_glob and across z_prev, T = 0.5: -log(e²/(e² + 1)) = log(1 + e⁻²) = 0.1269280."""
    z, z_glob, z_prev = (torch.tensor([v]) for v in ([3.0, 0.0], [0.5, 0.0], [0.0, 2.0]))
    assert float(contrastive_loss(z, z_glob, z_prev, 0.5)) == pytest.approx(0.1269280, abs=1e-6)


def test_features_without_a_direction_get_no_gradient() -> None:
    z = torch.zeros(2, 3, requires_grad=True)
    other = torch.ones(2, 3)
    loss = contrastive_loss(z, other, torch.zeros(2, 3), 0.5)
    (gradient,) = torch.autograd.grad(loss, z)
    assert float(loss.detach()) == pytest.approx(math.log(2))
    assert not gradient.any()


# Turns


def network(vector: Tensor, x: Tensor, net: FlatModel) -> tuple[Tensor, Tensor]:
    """Features and logits of the network `shallow`, in the vector's precision."""
    at = {e.name: vector[e.span].view(e.shape) for e in net.layout.entries}
    z = x @ at["body.1.weight"].T + at["body.1.bias"]
    return z, z @ at["head.weight"].T + at["head.bias"]


def similarity(a: Tensor, b: Tensor) -> Tensor:
    lengths: Tensor = a.norm(dim=1) * b.norm(dim=1)
    return (a * b).sum(1) / lengths


def descend(
    net: FlatModel, G: Tensor, P: Tensor, data: Examples, mu: float = 1.0, T: float = 0.5
) -> Tensor:
    """Three full-batch steps of torch's SGD with momentum, in double precision."""
    x = data.x.flatten(1).double() / 255
    z_glob, z_prev = (network(v.double(), x, net)[0] for v in (G, P))
    w = G.detach().double().requires_grad_()
    optimiser = torch.optim.SGD([w], lr=LR, momentum=0.9)
    for _ in range(3):
        optimiser.zero_grad()
        z, out = network(w, x, net)
        pair = torch.stack([similarity(z, z_glob), similarity(z, z_prev)], dim=1) / T
        first = torch.zeros(len(x), dtype=torch.int64)
        (F.cross_entropy(out, data.y) + mu * F.cross_entropy(pair, first)).backward()
        optimiser.step()
    return w.detach()


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b, atol=2e-6)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("moon(first=received)", {}),
        ("moon(first=received, mu=5)", {"mu": 5.0}),
        ("moon(first=received, T=0.1)", {"T": 0.1}),
    ],
)
def test_three_turns_keep_away_from_the_previous_one(
    text: str,
    options: dict[str, float],
    shallow: Nets,
    examples: Data,
    trainer: Make,
    turn: Take,
) -> None:
    """The first previous model is the received one."""
    net, data = shallow(), examples(8)
    device = trainer(text, net, data)
    private, previous = Private(), shallow(1).vector
    for number, seed in enumerate((1, 2, 3)):
        received = shallow(seed).vector
        answer = turn(device, private, received=received, number=number, epochs=3, batch_size=8)
        assert close(answer.upload, descend(net, received, previous, data, **options))
        assert torch.equal(answer.private.tensor("moon.previous"), answer.upload)
        private, previous = answer.private, answer.upload


def test_the_first_previous_model_is_a_net_of_the_devices_own(
    shallow: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Its bytes are those that the layers draw from the seed of run and device, in every round."""
    data, received = examples(8), shallow(1).vector
    digest = hashlib.sha256(b"5/d1/moon").digest()
    initial = shallow(int.from_bytes(digest[:7], "little")).vector
    for number in (0, 7):
        answer = turn(
            trainer("moon", shallow(), data),
            received=received,
            seed=5,
            number=number,
            epochs=3,
            batch_size=8,
        )
        assert close(answer.upload, descend(shallow(), received, initial, data))
    other = turn(
        trainer("moon", shallow(), data, "d2"), received=received, seed=5, epochs=3, batch_size=8
    )
    assert not close(other.upload, descend(shallow(), received, initial, data))


def test_a_net_of_its_own_leaves_the_randomness_of_the_training_alone(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Dropout and batches are those of a device that has a previous model already."""
    data = examples(9, side=16)
    digest = hashlib.sha256(b"0/d1/moon").digest()
    initial = deep(int.from_bytes(digest[:7], "little")).vector
    drawn, kept = (
        turn(trainer("moon", deep(), data), private, epochs=2).upload
        for private in (Private(), Private({"moon.previous": initial}))
    )
    assert torch.equal(drawn, kept)


def test_a_device_that_took_no_step_has_no_previous_model(
    shallow: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    assert not turn(trainer("moon", shallow(), examples(0))).private


def test_with_the_received_model_the_first_turn_trains_as_fedavg_and_its_term_is_log_two(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data = examples(9, side=16)
    texts = ("moon(mu=3, first=received)", "fedavg")
    moon, plain = (turn(trainer(text, deep(), data), epochs=2) for text in texts)
    assert torch.allclose(moon.upload, plain.upload, atol=1e-6)
    assert moon.scalars["loss"] == pytest.approx(plain.scalars["loss"] + 3 * math.log(2), rel=1e-5)


def test_without_the_term_it_is_fedavg_bit_for_bit(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data, private = examples(9, side=16), Private({"moon.previous": deep(1).vector})
    uploads = [
        turn(trainer(text, deep(), data), private, epochs=2).upload
        for text in ("moon(mu=0)", "fedavg", "moon")
    ]
    assert torch.equal(uploads[0], uploads[1])
    assert not torch.equal(uploads[0], uploads[2])


def test_mixtures_are_compared_with_the_features_of_the_same_mixtures(
    shallow: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """One step of all examples; the contrast does not depend on the label, and counts once."""
    observer, batches = observing()
    net, data = shallow(), examples(8)
    G, P = shallow(1).vector, shallow(2).vector
    device = trainer(Stack((Mixup(alpha=1.0), Moon(), observer)), net, data)
    answer = turn(device, Private({"moon.previous": P}), received=G, batch_size=8)
    (batch,) = batches
    x, w = batch.x.flatten(1).double(), G.double().requires_grad_()
    z, out = network(w, x, net)
    z_glob, z_prev = (network(v.double(), x, net)[0] for v in (G, P))
    loss = F.softplus((similarity(z, z_prev) - similarity(z, z_glob)) / 0.5).mean()
    for y, m in batch.targets:
        loss = loss + m * F.cross_entropy(out, y)
    (g,) = torch.autograd.grad(loss, w)
    assert len(batch.targets) == 2
    assert close(answer.upload, w.detach() - LR * g)


def test_the_previous_model_is_kept_though_its_update_came_too_late(
    shallow: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    device = trainer("moon", shallow(), examples(8))
    answer = turn(device)
    assert device.method.kept_at_once(Private(), answer.private).keys() == {"moon.previous"}


@pytest.mark.parametrize(
    ("option", "rule"), [("mu=-1", "mu must be at least 0"), ("T=0", "T must be above 0")]
)
def test_bad_options_are_refused(option: str, rule: str) -> None:
    with pytest.raises(MethodError, match=rule):
        method(f"moon({option})")
