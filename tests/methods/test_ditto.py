"""Ditto over three turns against plain loops; what it sends is FedAvg's, or with RS FedRS's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fededge.errors import MethodError
from fededge.methods import Private, method
from tests.loops import close, curved, descend
from tests.training_fixtures import Data, Make, Nets, Take


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_three_turns_are_those_of_plain_loops(
    lam: float, examples: Data, trainer: Make, turn: Take
) -> None:
    """w from the global model, v from itself, held near the global model of each round."""
    data, net = examples(9), curved()
    device = trainer(f"ditto(lam={lam})", net, data)
    private, v = Private(), torch.empty(0)
    for number in range(3):
        w = curved(seed=number).vector.clone()

        def prox(own: Tensor, w: Tensor = w) -> Tensor:
            return lam * (own - w)

        answer = turn(
            device, private, received=w, number=number, epochs=4, batch_size=9, weight_decay=0.01
        )
        private = answer.private
        v = descend(net, v if number else w, data, 4, pull=prox)
        assert close(answer.upload, descend(net, w, data, 4))
        assert close(answer.personal, v)
        assert torch.equal(answer.personal, private.tensor("ditto.v"))
        assert answer.scalars["steps"] == 4


def test_the_upload_equals_fedavgs_bit_for_bit(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data = examples(21, side=16)
    fedavg = turn(trainer("fedavg", deep(), data), epochs=2)
    for private in (Private(), Private({"ditto.v": deep(seed=5).vector})):
        ditto = turn(trainer("ditto", deep(), data), private, epochs=2)
        assert torch.equal(fedavg.upload, ditto.upload)
        assert fedavg.scalars["loss"] == ditto.scalars["loss"]
        assert not torch.equal(ditto.personal, ditto.upload)


def test_ditto_rs_restricts_what_is_sent_and_leaves_the_personal_model_alone(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data = examples(21, side=16)
    private = Private({"ditto.v": deep(seed=5).vector})
    both = turn(trainer("ditto+fedrs(alpha=0.5)", deep(), data), private, epochs=2)
    fedrs = turn(trainer("fedrs(alpha=0.5)", deep(), data), epochs=2)
    ditto = turn(trainer("ditto", deep(), data), private, epochs=2)
    assert torch.equal(both.upload, fedrs.upload)
    assert torch.equal(both.personal, ditto.personal)
    assert not torch.equal(fedrs.upload, ditto.upload)
    assert method("ditto+fedrs").weight({"examples": 7.0}) == 1
    assert method("ditto").weight({"examples": 7.0}) == 7


def test_a_stronger_pull_keeps_the_personal_model_nearer(
    examples: Data, trainer: Make, turn: Take
) -> None:
    net, data = curved(), examples(9)
    trained, w = net.layout.trainable.bool(), net.vector.clone()
    apart = []
    for lam in (0, 1, 4):
        answer = turn(trainer(f"ditto(lam={lam})", net, data), received=w, epochs=5)
        apart.append(float((answer.personal - w)[trained].norm()))
    assert apart[0] > apart[1] > apart[2] > 0


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(MethodError, match=r"^ditto\(lam=-1.0\): lam must be at least 0$"):
        method("ditto(lam=-1)")
