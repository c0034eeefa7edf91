"""Promotion of models: by the device's data, its apps, and the coordinator's rollout."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fededge.config import AgentConfig
from fededge.export import Candidate, ModelManifest, ModelRegistry, Samples
from fededge.export.manifest import InputSpec
from fededge.federated.rollout import place
from fededge.wire.messages import Rollout, State, Status
from fededge_agent.exporter.exports import DeviceExports
from fededge_agent.exports.handover_files import write_samples
from fededge_agent.exports.promotion import Promotion
from tests.device_agent.test_turn_runner import STATE

BASE = {
    "federation": "gates", "device": "box", "method": "fedavg", "run": "run",
    "version": "000000-0123456789abcdef", "created": "2025-03-01T12:30:00Z",
    "labels": ["a", "b"], "input": InputSpec(shape=(1, 2, 2)), "layout": "ab" * 32, "fededge": "0",
    "size": 64, "compared": 1, "difference": 0.0,
}  # fmt: skip
CUT = place("run", 1, "box")


def candidate(round_: int, accuracy: float | None, weights: int | None = None) -> Candidate:
    number = f"{round_ if weights is None else weights:064x}"
    data = number.encode()
    sha256 = hashlib.sha256(data).hexdigest()
    facts = {**BASE, "round": round_, "accuracy": accuracy, "sha256": sha256, "weights": number}
    return Candidate(
        msgspec.convert(facts, ModelManifest, from_attributes=True), {"model.onnx": data}
    )


EXAMPLES = 100


class Device:
    """A device whose models are as accurate as `accuracies` says, by round, today.

    It has 100 held-out examples; a model is right on the first ones.
    """

    def __init__(self, folder: Path, margin: float = 0.0) -> None:
        self.models = ModelRegistry(folder)
        self.accuracies: dict[int, float | None] = {}
        self.offered: dict[bytes, int] = {}
        self.promotion = Promotion(self.models, "box", margin, self.score)
        self.promotion.follow(self.state(None))

    def score(self, model: int | bytes) -> list[bool] | None:
        of = self.models.manifest(model).round if isinstance(model, int) else self.offered[model]
        share = self.accuracies[of]
        return None if share is None else [i < round(share * EXAMPLES) for i in range(EXAMPLES)]

    def offer(self, round_: int, accuracy: float | None, weights: int | None = None) -> str:
        self.accuracies.setdefault(round_, accuracy)
        made = candidate(round_, accuracy, weights)
        self.offered[made.files["model.onnx"]] = round_
        return self.promotion.offer(made, lambda same: same)

    def state(self, rollout: Rollout | None) -> State:
        return msgspec.structs.replace(STATE, rollout=rollout)

    def told(self, *, cut: float, after: int = 0, until: int, released: int = 0) -> None:
        rollout = Rollout(1, released, after, until, cut)
        self.promotion.follow(self.state(rollout))
        self.promotion.release()

    @property
    def round(self) -> int:
        current = self.models.current()
        return -1 if current is None else current.round

    @property
    def status(self) -> dict[str, Any]:
        said = self.promotion.describe()
        assert Status("i", True, **said)  # the schema takes it
        return said


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path / "models")


def test_a_model_takes_over_unless_it_is_worse_by_more_than_chance(device: Device) -> None:
    """Four examples lost, none won: 1/16. Five: 1/32, which is below one in twenty."""
    assert device.status == {"model_round": -1, "model_state": "none", "rollout": 0}
    assert device.offer(0, 0.8) == "promoted"
    assert device.offer(1, 0.8) == "promoted"
    assert device.offer(2, 0.75) == (
        "rejected: 75.0% on 100 held-out examples, the current one has 80.0%: more than chance "
        "(p = 0.031)"
    )
    assert device.status == {"model_round": 1, "model_state": "rejected", "rollout": 0}
    assert len(device.models.numbers()) == 2  # it is not even written
    assert device.offer(3, 0.76) == "promoted"


def test_a_margin_lets_a_worse_model_take_over(tmp_path: Path) -> None:
    device = Device(tmp_path, margin=6.0)
    device.offer(0, 0.8)
    assert device.offer(1, 0.74) == "promoted"
    assert device.offer(2, 0.67).startswith("rejected")


def test_the_current_model_is_measured_on_todays_data(device: Device) -> None:
    """Its manifest says 90 %; on what is held out now it has 60 %."""
    device.offer(0, 0.9)
    device.accuracies[0] = 0.6
    assert device.offer(1, 0.7) == "promoted"


def test_a_perfect_score_on_few_examples_does_not_last_for_ever(device: Device) -> None:
    """Once 100 %, then 99 % in every round: the newest model is the current one."""
    device.offer(0, 1.0)
    assert [device.offer(number, 0.99) for number in range(1, 6)] == ["promoted"] * 5
    assert device.round == 5


def test_a_current_model_that_is_worse_on_new_data_gives_way(device: Device) -> None:
    """The held-out data changed: the current one, once perfect, is measured on it again."""
    device.offer(0, 1.0)
    assert device.offer(1, 0.9).startswith("rejected")
    device.accuracies[0] = 0.92
    assert device.offer(2, 0.9) == "promoted"


@pytest.mark.parametrize("labels", [("b", "a"), ("a", "b", "c")])
def test_a_current_model_with_other_labels_gives_way(
    device: Device, labels: tuple[str, ...]
) -> None:
    """A new run may have the classes in another order: the same number is another answer."""
    device.offer(0, 1.0)
    made = candidate(1, 0.5)
    device.accuracies[1], device.offered[made.files["model.onnx"]] = 0.5, 1
    other = replace(made, manifest=msgspec.structs.replace(made.manifest, labels=labels))
    assert device.promotion.offer(other, lambda same: same) == "promoted"


def write_held(folder: Path, right: int, count: int = 8) -> None:
    """Held-out examples, as the trainer leaves them: class `right` is the answer to each."""
    x = np.zeros((count, 1, 2, 2), np.uint8)
    write_samples(folder, Samples(x, x, np.full(count, right)))


def test_when_the_data_changes_the_current_model_is_scored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight examples. Model n answers class n % 2: model 0 is right on all of them, then on none.

    Lost 8 to 0 is p = 1/256; won 8 to 0 is p = 1. Its manifest keeps saying 100 %.
    """

    def answers(file: Path | bytes, x: np.ndarray) -> np.ndarray:
        data = file if isinstance(file, bytes) else file.read_bytes()
        return np.eye(2)[[int(data, 16) % 2] * len(x)]

    monkeypatch.setattr("fededge_agent.exporter.exports.probabilities", answers)
    config = AgentConfig(federation="gates", device="box", state=str(tmp_path))
    exports = DeviceExports(config)
    write_held(exports.folder, right=0)
    offer = exports.promotion.offer
    assert offer(candidate(0, 1.0), lambda same: same) == "promoted"
    assert offer(candidate(1, 0.0), lambda same: same) == (
        "rejected: 0.0% on 8 held-out examples, the current one has 100.0%: more than chance "
        "(p = 0.0039)"
    )
    write_held(exports.folder, right=1)
    assert offer(candidate(3, 0.0), lambda same: same) == "promoted"
    current = exports.promotion.models.current()
    assert current is not None
    assert current.round == 3
    assert offer(candidate(4, 1.0), lambda same: same).startswith("rejected: 0.0% on 8")


def test_without_held_out_data_the_newest_takes_over(device: Device) -> None:
    assert [device.offer(n, None) for n in range(3)] == ["promoted"] * 3


def report(device: Device, number: int) -> None:
    sha256 = device.models.manifest(number).sha256
    path = device.models.path(number) / "bad.json"
    path.write_text(json.dumps({"sha256": sha256, "reason": "all trucks"}))


def test_a_report_of_an_app_rolls_back_once(device: Device) -> None:
    device.offer(0, 0.8)
    device.offer(1, 0.9)
    report(device, 2)
    assert device.promotion.look()
    assert not device.promotion.look()
    assert device.status == {"model_round": 0, "model_state": "rolled-back", "rollout": 0}
    assert device.offer(5, 0.99, weights=1) == "rejected: these weights were reported bad"
    assert device.offer(2, 0.85) == "promoted"  # better than what is current now


def test_if_the_only_model_is_bad_any_other_replaces_it(device: Device) -> None:
    device.offer(0, 0.8)
    report(device, 1)
    assert device.promotion.look()
    assert device.round == 0
    assert device.offer(1, 0.1) == "promoted"


def test_a_damaged_current_model_is_replaced_by_whatever_comes(device: Device) -> None:
    device.offer(0, 0.9)
    (device.models.path(1) / "manifest.json").write_text("{")
    assert not device.promotion.look()
    assert device.offer(1, 0.1) == "promoted"


def test_models_that_cannot_be_read_are_said_once(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    device.offer(0, 0.9)
    report(device, 1)
    (device.models.folder / "index.json").write_text("{")
    assert [device.promotion.look() for _ in range(5)] == [False] * 5
    assert len(caplog.records) == 1


def test_while_another_is_pinned_a_better_one_is_held(device: Device) -> None:
    device.offer(0, 0.8)
    device.models.pin(1)
    assert device.offer(1, 0.9) == "held: another one is pinned"
    assert device.status["model_state"] == "pinned"


# The coordinator's rollout


def test_a_model_waits_until_the_rollout_reaches_the_device(device: Device) -> None:
    device.told(cut=0.0, until=0)
    assert device.offer(0, 0.8) == "held: the rollout has not reached it"
    assert device.status["model_round"] == -1
    device.told(cut=CUT, until=1)  # the place itself is not below the cut
    assert device.round == -1
    assert device.status == {"model_round": -1, "model_state": "idle", "rollout": 1}
    device.told(cut=CUT + 1e-9, until=1)
    assert device.status == {"model_round": 0, "model_state": "promoted", "rollout": 1}


def test_a_held_model_that_was_damaged_meanwhile_is_passed_over(device: Device) -> None:
    """It cannot be measured either, and must not be mistaken for a device without held-out data."""
    device.offer(0, 0.8)
    device.told(cut=0.0, released=1, after=1, until=1)
    device.offer(1, 0.8)
    device.offer(2, 0.8)
    (device.models.path(3) / "model.onnx").write_bytes(b"half")
    device.accuracies[2] = None
    device.told(cut=1.0, released=1, after=1, until=3)
    assert device.round == 1


def test_the_candidate_of_a_rollout_survives_many_later_models(device: Device) -> None:
    """The candidate of a slow rollout, and the model to go back to, are not pruned."""
    device.offer(0, 0.8)
    device.told(cut=0.0, released=1, after=1, until=2)
    for number in range(1, 12):
        device.offer(number, 0.8)
    device.told(cut=1.0, released=1, after=1, until=2)
    assert device.round == 1
    for number in range(12, 20):
        device.offer(number, 0.8)
    device.told(cut=0.0, released=1, after=2, until=2)
    assert device.round == 0


def test_a_model_that_is_worse_when_its_turn_comes_is_rejected(device: Device) -> None:
    device.offer(0, 0.8)
    device.told(cut=0.0, released=1, after=1, until=1)
    device.offer(1, 0.7)
    device.told(cut=1.0, released=1, after=1, until=2)
    assert device.status == {"model_round": 0, "model_state": "rejected", "rollout": 1}


def test_an_aborted_rollout_takes_the_model_back_for_good(device: Device) -> None:
    device.offer(0, 0.8)
    device.told(cut=1.0, released=1, after=1, until=2)
    device.offer(1, 0.9)
    assert device.status == {"model_round": 1, "model_state": "promoted", "rollout": 1}
    device.told(cut=0.0, released=1, after=2, until=2)
    assert device.status == {"model_round": 0, "model_state": "rolled-back", "rollout": 1}
    device.told(cut=1.0, released=3, after=3, until=3)  # later models are for all
    assert device.round == 0


def test_a_held_model_of_an_aborted_rollout_is_never_used(device: Device) -> None:
    device.offer(0, 0.8)
    device.told(cut=0.0, released=1, after=1, until=2)
    device.offer(1, 0.9)
    device.told(cut=0.0, released=1, after=2, until=2)
    device.told(cut=0.0, released=3, after=3, until=3)
    assert device.round == 0


def test_an_app_that_says_bad_is_the_devices_answer_to_the_rollout(device: Device) -> None:
    device.offer(0, 0.8)
    device.told(cut=1.0, released=1, after=1, until=2)
    device.offer(1, 0.9)
    report(device, 2)
    device.promotion.look()
    assert device.status == {"model_round": 0, "model_state": "bad", "rollout": 1}
    device.told(cut=1.0, released=1, after=1, until=2)
    assert device.status["model_state"] == "bad"


def test_the_answer_outlives_the_agent(device: Device, tmp_path: Path) -> None:
    device.told(cut=1.0, until=1)
    device.offer(0, 0.8)
    again = Device(tmp_path / "models")
    again.accuracies = device.accuracies
    again.told(cut=1.0, until=1)
    assert again.status == {"model_round": 0, "model_state": "promoted", "rollout": 1}


def test_models_of_an_earlier_run_are_left_alone(device: Device) -> None:
    old = candidate(30, 0.8)
    manifest = msgspec.structs.replace(old.manifest, run="another")
    device.models.publish(replace(old, manifest=manifest))
    device.told(cut=0.0, until=0)
    assert device.round == 30


def test_a_federation_without_rollouts_lets_every_device_decide(device: Device) -> None:
    device.told(cut=0.0, until=0)
    assert device.offer(0, 0.8).startswith("held")
    device.promotion.follow(device.state(None))
    assert device.offer(1, 0.8) == "promoted"
