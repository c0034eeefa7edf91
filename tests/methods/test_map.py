"""MAP: its first stage is FedRS, its second FedPHP from there, and only the first is sent."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fededge.errors import MethodError
from fededge.methods import Private, method
from tests.loops import Loss, close, cross_entropy, curved, descend, look
from tests.training_fixtures import Data, Make, Nets, Take


def restricted(z: Tensor, h: Tensor, y: Tensor) -> Tensor:
    """Eq. 8 with alpha 0.6: the data have no example of the last class."""
    return F.cross_entropy(torch.tensor([1.0, 1.0, 0.6], dtype=torch.float64) * z, y)


def taught(plogits: Tensor) -> Loss:
    """Eq. 11 and 12: 0.7 CE + 0.3 · 16 KL(softmax(g_p/4) ‖ softmax(g/4))."""
    q = (plogits / 4).softmax(1)

    def loss(z: Tensor, h: Tensor, y: Tensor) -> Tensor:
        kl = (q * (q.log() - (z / 4).log_softmax(1))).sum(1).mean()
        return 0.7 * F.cross_entropy(z, y) + 0.3 * 16 * kl

    return loss


def test_three_turns_are_those_of_a_plain_loop(examples: Data, trainer: Make, turn: Take) -> None:
    """Five steps: floor(5/2) = 2 are sent, 3 follow with new momentum. Q · T = 2: mu 0, .45, .9."""
    data, net = examples(9), curved()
    device = trainer("map(alpha=0.6, lam=0.3, turns=2)", net, data)
    private, hpm = Private(), torch.empty(0)
    for z, mu in enumerate((0.0, 0.45, 0.9)):
        w = curved(seed=z).vector.clone()
        answer = turn(
            device, private, received=w, number=z, epochs=5, batch_size=9, weight_decay=0.01
        )
        private = answer.private
        sent = descend(net, w, data, 2, restricted)
        own = descend(net, sent, data, 3, taught(look(net, hpm, data)[0]) if z else cross_entropy)
        hpm = mu * hpm + (1 - mu) * own if z else own
        assert close(answer.upload, sent)
        assert close(answer.personal, hpm)
        assert torch.equal(answer.personal, private.tensor("map.hpm"))
        assert private["map.z"] == z + 1
        assert answer.scalars["steps"] == 2


def test_the_first_stage_is_fedrs_with_half_the_steps_bit_for_bit(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """With batch norm and dropout, in the first turn and with a private model in the second."""
    data = examples(21, side=16)
    options = "alpha=0.5, rs=smooth"
    private = Private()
    for number in range(2):
        both = turn(trainer(f"map({options})", deep(), data), private, number=number, epochs=4)
        half = turn(trainer(f"fedrs({options})", deep(), data), number=number, epochs=2)
        private = both.private
        assert torch.equal(both.upload, half.upload)
        for name in ("steps", "loss", "examples"):
            assert both.scalars[name] == half.scalars[name]
        assert not torch.equal(both.personal, both.upload)


def test_nothing_of_the_private_model_is_sent(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Two devices that differ in it alone send the same bytes and numbers."""
    data = examples(13, side=16, held=0)
    answers = [
        turn(
            trainer("map(lam=1)", deep(), data),
            Private({"map.hpm": deep(seed).vector, "map.z": 30}),
            epochs=2,
        )
        for seed in (1, 2)
    ]
    assert torch.equal(answers[0].upload, answers[1].upload)
    assert answers[0].scalars == answers[1].scalars
    assert not torch.equal(answers[0].personal, answers[1].personal)


def test_with_a_single_step_the_global_model_is_sent_back(
    examples: Data, trainer: Make, turn: Take
) -> None:
    """floor(1/2) = 0 steps are for the federation: a round needs two."""
    net, data = curved(), examples(9)
    w = net.vector.clone()
    answer = turn(trainer("map", net, data), epochs=1, batch_size=9, weight_decay=0.01)
    assert torch.equal(answer.upload, w)
    assert answer.scalars["steps"] == 0
    assert close(answer.personal, descend(net, w, data, 1))


def test_its_options_are_those_of_both_stages() -> None:
    assert str(method("map")) == (
        "map(alpha=0.9, rs=binary, min_count=1, agg=uniform, mu=0.9, turns=0, "
        "transfer=kd, lam=0.01, T=4.0, kd=map)"
    )
    report = {"examples": 7.0}
    assert method("map").weight(report) == 1
    assert method("map(agg=n)").weight(report) == 7


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("map(alpha=1.5)", "alpha must lie between 0 and 1"),
        ("map(min_count=0)", "min_count must be at least 1"),
        ("map(rs=hard)", "must be one of binary, smooth, prior; got 'hard'"),
        ("map+fedphp", "each decides"),
        ("map+ditto", "cannot be combined: each decides the phases of the local training"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(MethodError, match=sentence):
        method(text)
