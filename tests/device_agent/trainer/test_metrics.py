"""A device's own metrics, against plain computations on the same data."""

from __future__ import annotations

import csv
import logging
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fededge.flat import FlatModel
from fededge.methods import Hyper, Private, method
from fededge.models.base import Classifier
from fededge.training import Examples, Task, Trainer
from fededge_agent.requests import StoppedError
from fededge_agent.trainer import metrics
from fededge_agent.trainer.metrics import Diary, turn_metrics, unmeasured


@pytest.fixture
def trainer() -> Trainer:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(30, 1, 2, 2, generator=draw), torch.arange(30) % 2
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        net = FlatModel(Classifier(nn.Flatten(), nn.Linear(4, 3)))
    data = Examples(x[:20], y[:20], x[20:], y[20:], classes=3)
    return Trainer("d", net, nn.Identity(), data, method("fedavg"))


def plain_accuracy(weights: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> float:
    """The accuracy of a linear layer whose vector has 3x4 weights and 3 biases."""
    logits = x.flatten(1).double() @ weights[:12].view(3, 4).double().T + weights[12:].double()
    return float((logits.argmax(1) == y).double().mean())


def test_a_turn_is_described_by_the_devices_own_data(trainer: Trainer) -> None:
    received = trainer.net.vector.clone()
    answer = trainer.turn(Task(0, 0, Hyper(epochs=9, lr=0.5), received, {}), Private())
    row = turn_metrics(trainer, received, answer)
    x, y = trainer.data.held_x, trainer.data.held_y
    assert row["global_accuracy"] == pytest.approx(plain_accuracy(received, x, y))
    assert row["local_accuracy"] == pytest.approx(plain_accuracy(answer.upload, x, y))
    assert row["personal_accuracy"] == answer.personal_accuracy
    assert row.keys() >= {"loss", "examples", "steps", "kl", "learning_present"}

    weights = answer.upload.double()
    z = trainer.data.x.flatten(1).double() @ weights[:12].view(3, 4).T + weights[12:]
    p = torch.stack([z.softmax(1)[trainer.data.y == c].mean(0) for c in (0, 1)])
    tau = 1 - 1e-5
    q = torch.full((2, 3), (1 - tau) / 2, dtype=torch.float64)
    q[0, 0] = q[1, 1] = tau
    assert row["kl"] == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-5)


def test_metrics_stop_before_the_next_batch_and_keep_their_columns(trainer: Trainer) -> None:
    received = trainer.net.vector.clone()
    answer = trainer.turn(Task(0, 0, Hyper(epochs=1, lr=0.5), received, {}), Private())
    asked = iter((True, False))

    def go_on() -> None:
        if not next(asked):
            raise StoppedError

    before = trainer.net.vector.clone()
    with pytest.raises(StoppedError):
        turn_metrics(trainer, received, answer, go_on)
    assert torch.equal(trainer.net.vector, before)
    row = unmeasured(answer)
    assert list(row) == list(turn_metrics(trainer, received, answer))
    assert row["personal_accuracy"] == answer.personal_accuracy
    assert math.isnan(row["local_accuracy"])


def test_without_held_out_data_accuracies_are_unknown(trainer: Trainer) -> None:
    data = trainer.data
    trainer.data = Examples(data.x, data.y, data.held_x[:0], data.held_y[:0], classes=3)
    received = trainer.net.vector.clone()
    answer = trainer.turn(Task(0, 0, Hyper(), received, {}), Private())
    row = turn_metrics(trainer, received, answer)
    assert math.isnan(row["global_accuracy"])
    assert math.isnan(row["personal_accuracy"])
    assert math.isfinite(row["kl"])


def test_a_row_a_turn_and_other_columns_begin_anew(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    diary.add({"round": 0, "loss": 1.5})
    diary.add({"round": 1, "loss": 1.25})
    with open(diary.path, newline="") as file:
        assert [row["loss"] for row in csv.DictReader(file)] == ["1.5", "1.25"]
    diary.add({"round": 2, "loss": 1.0, "v_m": 0.75})
    assert diary.path.read_text() == "round,loss,v_m\n2,1.0,0.75\n"
    assert "1,1.25" in (tmp_path / "metrics.1.csv").read_text()


def test_the_diary_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_BYTES", 200)
    diary = Diary(tmp_path)
    for number in range(100):
        diary.add({"round": number})
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 500
    assert diary.path.read_text().endswith("99\n")


def test_a_diary_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Diary(tmp_path / "missing").add({"round": 0})
    assert "metrics are not kept (No such file or directory)" in caplog.text
