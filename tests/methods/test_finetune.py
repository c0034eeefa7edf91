"""Fine-tuning before the training: against plain SGD, and against FedAvg and FedProx."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fededge.errors import MethodError
from fededge.methods import method
from fededge.training import Examples
from tests.training_fixtures import Data, Make, Nets, Take


def descend(w: Tensor, data: Examples, steps: int, mu: float = 0.0, anchor: float = 0.0) -> Tensor:
    """Full-batch SGD on the linear network: lr 0.1, momentum 0.9 from zero, a pull to `anchor`."""
    x, w = data.x.flatten(1).double() / 255, w.double()
    buffer = torch.zeros_like(w)
    for _ in range(steps):
        w = w.detach().requires_grad_()
        loss = F.cross_entropy(x @ w[:12].view(3, 4).T + w[12:], data.y)
        (g,) = torch.autograd.grad(loss + mu / 2 * (w - anchor).square().sum(), w)
        buffer = 0.9 * buffer + g
        w = w.detach() - 0.1 * buffer
    return w


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), atol=2e-6)


def test_ten_passes_first_and_the_training_goes_on_from_there(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """The personal model is where the ten ended; the training has new momentum."""
    data, w = examples(6), plain().vector.clone()
    answer = turn(trainer("fedavg-c", plain(), data), received=w, epochs=2, batch_size=6)
    tuned = descend(w, data, 10)
    assert close(answer.personal, tuned)
    assert close(answer.upload, descend(tuned, data, 2))
    assert answer.scalars["steps"] == 12


@pytest.mark.parametrize(
    ("text", "pulled"), [("fedprox-c(mu=2, epochs=3)", 2.0), ("fedprox(mu=2)@train+finetune", 0.0)]
)
def test_the_pull_is_in_both_phases_unless_it_is_limited_to_one(
    text: str, pulled: float, plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """From w_t = 0: the pull is μ w in either phase."""
    data, w = examples(6), torch.zeros(15)
    answer = turn(trainer(text, plain(), data), received=w, epochs=2, batch_size=6)
    tuned = descend(w, data, 3 if pulled else 10, mu=pulled)
    assert close(answer.personal, tuned)
    assert close(answer.upload, descend(tuned, data, 2, mu=2.0))


@pytest.mark.parametrize(
    "texts",
    [
        ("fedavg-c(epochs=3)", "fedavg+finetune(epochs=3)", "finetune(epochs=3)+fedavg"),
        ("fedprox-c(mu=0.5, epochs=3)", "fedprox(mu=0.5)+finetune(epochs=3)"),
    ],
)
def test_the_names_are_the_compositions_bit_for_bit(
    texts: tuple[str, ...], deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data, w = examples(11, side=16), deep().vector.clone()
    answers = [turn(trainer(text, deep(), data), received=w, epochs=2) for text in texts]
    for answer in answers[1:]:
        assert torch.equal(answers[0].upload, answer.upload)
        assert torch.equal(answers[0].personal, answer.personal)
    assert not torch.equal(answers[0].upload, answers[0].personal)


def test_without_passes_it_is_fedavg_and_the_personal_model_is_the_global_one(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data, w = examples(11, side=16), deep().vector.clone()
    answer = turn(trainer("finetune(epochs=0)", deep(), data), received=w)
    assert torch.equal(answer.upload, turn(trainer("fedavg", deep(), data), received=w).upload)
    assert torch.equal(answer.personal, w)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("finetune(epochs=-1)", "epochs must be at least 0"),
        ("fedavg-c(epochs=-1)", "epochs must be at least 0"),
        ("fedprox-c(epochs=-1)", "epochs must be at least 0"),
        ("fedprox-c(mu=-1)", "mu must be at least 0"),
    ],
)
def test_a_bad_option_is_refused(text: str, rule: str) -> None:
    with pytest.raises(MethodError, match=f"{rule}$"):
        method(text)


def test_two_owners_of_the_phases_are_refused() -> None:
    with pytest.raises(MethodError, match="map and finetune cannot be combined"):
        method("map+finetune")
