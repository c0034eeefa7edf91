"""mixup: what a mixed batch is made of, where its randomness comes from, and the loss of both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.method.base import Batch, Method, TurnView
from fededge.method.stack import Stack
from fededge.methods import method
from fededge.methods.fedavg import FedAvg
from fededge.methods.mixup import Mixup
from fededge.training import Examples, Trainer
from tests.training_fixtures import Data, Make, Nets, Take

Mixed = Callable[..., tuple[list[Batch], list[Batch]]]


def tape(batches: list[Batch], name: str = "tape") -> Method:
    """A layer that changes nothing and keeps the batches that it is given."""

    def keep(self: Method, r: TurnView, batch: Batch) -> Batch:
        batches.append(batch)
        return batch

    kind: type[Method] = type("Tape", (Method,), {"name": name, "batch": keep})
    return kind()


@pytest.fixture
def mixed(plain: Nets, examples: Data, trainer: Make, turn: Take) -> Mixed:
    """The batches of a turn, before and after mixup."""

    def make(alpha: float = 0.2, count: int = 10, **how: int) -> tuple[list[Batch], list[Batch]]:
        before: list[Batch] = []
        after: list[Batch] = []
        layers = (tape(before, "before"), Mixup(alpha), tape(after, "after"))
        turn(trainer(Stack(layers), plain(), examples(count)), **how)
        return before, after

    return make


def partner(x: Tensor, rows: Tensor, mixture: Tensor, m: float) -> int:
    """The one row that makes x into this mixture."""
    distance = (m * x + (1 - m) * rows - mixture).flatten(1).norm(dim=1)
    assert distance.min() < 1e-6
    return int(distance.argmin())


def test_every_input_is_mixed_with_one_of_its_batch_by_one_share(
    mixed: Mixed,
) -> None:
    """x = m x_a + (1 - m) x_b, where b runs over the batch once; labels go with their inputs."""
    partners = []
    before, after = mixed(alpha=1.0, count=12, epochs=3, batch_size=6)
    for was, batch in zip(before, after, strict=True):
        ((y, _),) = was.targets
        (y_a, m), (y_b, rest) = batch.targets
        assert 0 < m < 1
        assert m + rest == pytest.approx(1.0)
        found = [partner(x, was.x, mix, m) for x, mix in zip(was.x, batch.x, strict=True)]
        assert sorted(found) == list(range(6))
        assert torch.equal(y_a, y)
        assert torch.equal(y_b, y[found])
        assert batch.index is None
        partners.append(found)
    assert len({tuple(found) for found in partners}) == len(partners)
    assert len({batch.targets[0][1] for batch in after}) == len(after)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_have_the_mean_and_variance_of_their_distribution(
    alpha: float, plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1)). Four standard errors are allowed."""
    drawn: list[float] = []

    def draw(self: Mixup, r: TurnView, w: Tensor) -> Tensor:
        two = r.batch(torch.arange(2))
        drawn.extend(self.batch(r, two).targets[0][1] for _ in range(2000))
        return w

    eager: type[Mixup] = type("Eager", (Mixup,), {"name": "eager", "begin": draw})
    turn(trainer(eager(alpha), plain(), examples(2)))
    shares, n = torch.tensor(drawn, dtype=torch.float64), 2000
    variance = 1 / (4 * (2 * alpha + 1))
    assert shares.mean().item() == pytest.approx(0.5, abs=4 * (variance / n) ** 0.5)
    assert shares.var().item() == pytest.approx(variance, rel=4 * (2 / n) ** 0.5)
    if alpha == 1.0:  # uniform: Kolmogorov and Smirnov's distance, at the 1 % level
        steps = torch.arange(1, n + 1) / n
        assert (shares.sort().values - steps).abs().max() < 1.63 / n**0.5


def test_the_order_of_batches_is_as_without_it(
    mixed: Mixed,
    plain: Nets,
    examples: Data,
    trainer: Make,
    turn: Take,
) -> None:
    before, _ = mixed(count=10, epochs=2)
    alone: list[Batch] = []
    turn(trainer(Stack((tape(alone), FedAvg())), plain(), examples(10)), epochs=2)
    for one, two in zip(alone, before, strict=True):
        assert one.index is not None
        assert two.index is not None
        assert torch.equal(one.index, two.index)


def test_each_turn_mixes_in_its_own_way(
    mixed: Mixed,
) -> None:
    """Fixed by seed and round."""
    turns = [{}, {}, {"number": 1}, {"seed": 1}]
    shares = [[batch.targets[0][1] for batch in mixed(**how)[1]] for how in turns]
    assert shares[0] == shares[1]
    assert not set(shares[0]) & set(shares[2])
    assert not set(shares[0]) & set(shares[3])


def test_a_step_follows_the_shared_loss_of_both_labels(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """m · CE(y_a) + (1 - m) · CE(y_b) by autograd, in double precision, over three steps."""
    net, data = plain(), examples(8)
    after: list[Batch] = []
    w = net.vector.double()
    device = trainer(Stack((Mixup(1.0), tape(after))), net, data)
    answer = turn(device, epochs=3, batch_size=8, momentum=0.0)
    for batch in after:
        w = w.detach().requires_grad_()
        z = batch.x.flatten(1).double() @ w[:12].view(3, 4).T + w[12:]
        (y_a, m), (y_b, _) = batch.targets
        loss = m * F.cross_entropy(z, y_a) + (1 - m) * F.cross_entropy(z, y_b)
        w = w.detach() - 0.1 * torch.autograd.grad(loss, w)[0]
    assert torch.allclose(answer.upload.double(), w, atol=1e-6)


def test_one_example_alone_is_mixed_with_itself(
    mixed: Mixed,
) -> None:
    before, after = mixed(count=1, epochs=5)
    assert len(after) == 5
    for was, batch in zip(before, after, strict=True):
        assert torch.equal(was.x, batch.x)
        assert torch.equal(batch.targets[0][0], batch.targets[1][0])


def test_mixtures_can_be_mixed_again(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Two shares of each of two labellings: four, which sum to 1."""
    hooks = {name: vars(Mixup)[name] for name in ("alpha", "batch", "_partners", "_share")}
    twice: type[Method] = type("Twice", (Method,), {"name": "twice", **hooks})
    after: list[Batch] = []
    turn(trainer(Stack((Mixup(1.0), twice(), tape(after))), plain(), examples(6)), epochs=2)
    for batch in after:
        assert len(batch.targets) == 4
        assert sum(share for _, share in batch.targets) == pytest.approx(1.0)


def test_the_batch_that_it_is_given_stays_as_it_was(mixed: Mixed, examples: Data) -> None:
    before, after = mixed(alpha=1.0, count=8, batch_size=8)
    data = examples(8)
    for was, batch in zip(before, after, strict=True):
        assert was.index is not None
        assert torch.equal(was.x, data.x[was.index].float() / 255)
        assert not torch.equal(was.x, batch.x)


def test_texts_are_refused(turn: Take) -> None:
    x, y = torch.randint(0, 5, (6, 3)), torch.tensor([0, 1, 0, 1, 0, 1])
    net = FlatModel(nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2)))
    data = Examples(x, y, x, y, 2)
    turn(Trainer("d1", net, nn.Identity(), data, method("fedavg")))
    with pytest.raises(MethodError, match=r"^mixup can mix pixels, but not texts: leave it out$"):
        turn(Trainer("d1", net, nn.Identity(), data, method("fedavg+mixup")))


@pytest.mark.parametrize("alpha", ["0", "-1"])
def test_an_alpha_that_is_no_distribution_is_refused(alpha: str) -> None:
    wrong = rf"^mixup\(alpha={float(alpha)}\): alpha must be above 0$"
    with pytest.raises(MethodError, match=wrong):
        method(f"mixup(alpha={alpha})")


def test_an_alpha_of_almost_nothing_mixes_nothing(
    mixed: Mixed,
) -> None:
    """m is 0 or 1: every input is one of the batch's own, and all shares are numbers."""
    before, after = mixed(alpha=1e-9, count=12, epochs=5)
    assert {round(batch.targets[0][1], 6) for batch in after} == {0.0, 1.0}
    for was, batch in zip(before, after, strict=True):
        for x in batch.x:
            assert (was.x - x).flatten(1).norm(dim=1).min() < 1e-6
