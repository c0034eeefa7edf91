"""With its correction switched off by an option, a method trains exactly as FedAvg."""

from __future__ import annotations

import pytest
import torch

from tests.training_fixtures import Data, Make, Nets, Take


@pytest.mark.parametrize(
    ("neutral", "corrected"),
    [
        ("balanced(gamma=0)", "balanced"),
        ("fedlc(tau=0)", "fedlc"),
        ("fedprox(mu=0)", "fedprox(mu=1)"),
        ("fedavg+fedprox(mu=0)", "fedavg+fedprox(mu=1)"),
    ],
)
def test_without_its_correction_a_method_is_fedavg_bit_for_bit(
    neutral: str, corrected: str, deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data, received = examples(21, side=16), deep().vector.clone()
    plain, same, other = (
        turn(trainer(text, deep(), data), received=received, epochs=2).upload
        for text in ("fedavg", neutral, corrected)
    )
    assert torch.equal(plain, same)
    assert not torch.equal(plain, other)
    assert not torch.equal(plain, received)
