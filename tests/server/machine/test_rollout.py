"""The staged rollout of personal models, event by event, and over a whole fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fededge.config import CoordinatorConfig, RolloutConfig, load
from fededge.errors import ConfigError, StoreError
from fededge.federated.rollout import may_use, place
from fededge.wire.messages import Rollout, Status
from fededge_server.machine.events import Note, PublishState, StatusCame, Tick
from fededge_server.machine.rounds.rollout import (
    UNANSWERED,
    Plan,
    PlanKept,
    Planned,
    RoundsDone,
    Staging,
)
from fededge_server.store import Store

CONFIG = RolloutConfig(stages=(0.1, 0.5, 1.0), soak=60.0, abort=0.2)
FLEET = [f"box-{number}" for number in range(40)]


class Fleet:
    """A coordinator's staging and forty devices that each use what they may, and say so.

    `model` is the round of the model that a device's apps get, `before` the one it had.
    """

    def __init__(self, bad: frozenset[str] = frozenset(), folder: Path | None = None) -> None:
        self.now = 0.0
        self.staging = Staging(CONFIG, "run", Plan.initial(0), set(FLEET))
        self.bad = bad
        self.model = dict.fromkeys(FLEET, -1)
        self.before = dict.fromkeys(FLEET, -1)
        self.said: dict[tuple[int, str], str] = {}
        self.trained = -1
        self.store = None if folder is None else Store(folder)
        if self.store is not None:
            self.store.open()

    def handle(self, event: Any) -> list[str]:
        notes = []
        for command in self.staging.handle(event, self.now):
            if isinstance(command, Note):
                notes.append(command.text)
            if isinstance(command, Planned):
                if self.store is not None:
                    self.store.keep_plan(command.plan)
                assert self.staging.handle(PlanKept(command.plan), self.now) == [PublishState()]
        return notes

    def devices(self) -> list[str]:
        """Every device goes by what the coordinator says, and answers."""
        rollout, notes = self.staging.rollout, []
        for device in FLEET:
            if rollout.released <= self.model[device] < rollout.after:
                self.model[device] = self.before[device]
                self.said[rollout.number, device] = "rolled-back"
            newest = min(self.trained, rollout.until - 1)
            if may_use(rollout, "run", device, newest) and newest > self.model[device]:
                self.before[device], self.model[device] = self.model[device], newest
                said = "bad" if device in self.bad else "promoted"
                self.said[rollout.number, device] = said
                if device in self.bad:
                    self.model[device] = self.before[device]
            state = self.said.get((rollout.number, device), "idle")
            status = Status("i", True, device=device, rollout=rollout.number, model_state=state)  # type: ignore[arg-type]
            notes += self.handle(StatusCame(device, status))
        return notes

    def round(self) -> list[str]:
        self.trained += 1
        return self.handle(RoundsDone(self.trained + 1)) + self.devices()

    def soak(self) -> list[str]:
        self.now += CONFIG.soak
        return self.handle(Tick()) + self.devices()

    def using(self, number: int) -> int:
        return sum(model == number for model in self.model.values())


def test_a_new_model_reaches_the_fleet_stage_by_stage() -> None:
    fleet = Fleet()
    assert fleet.round() == ["rollout 1: stage 1 of 3, 10% of the devices"]
    assert fleet.using(0) == 4
    first = {device for device, model in fleet.model.items() if model == 0}
    assert fleet.handle(Tick()) == []  # it soaks
    fleet.soak()
    second = {device for device, model in fleet.model.items() if model == 0}
    assert first < second
    assert len(second) == 20
    fleet.soak()
    assert fleet.using(0) == 40
    assert fleet.staging.plan.stage == 2
    assert fleet.soak() == ["rollout 1: complete: the models are for everybody"]
    assert fleet.staging.idle
    assert fleet.staging.rollout == Rollout(1, 1, 1, 1, 0.0)


def test_a_plan_that_is_not_on_disk_does_not_count() -> None:
    staging = Staging(CONFIG, "run", Plan.initial(0), set(FLEET))
    (planned, note) = staging.handle(RoundsDone(1), 0.0)
    assert isinstance(planned, Planned), "before anybody reads of it"
    assert isinstance(note, Note)
    assert staging.plan == Plan.initial(0)
    assert staging.handle(Tick(), 0.0) == [planned, note], "it is tried again"


def test_what_is_trained_meanwhile_waits_for_the_next_rollout() -> None:
    fleet = Fleet()
    fleet.round()
    fleet.round()
    assert fleet.using(1) == 0
    notes = [note for _ in range(3) for note in fleet.soak()]
    assert notes[-1] == "rollout 2: stage 1 of 3, 10% of the devices"
    assert fleet.staging.rollout.released == 1
    fleet.devices()
    assert (fleet.using(0), fleet.using(1)) == (36, 4)


def test_each_rollout_begins_with_other_devices() -> None:
    first = {d for d in FLEET if place("run", 1, d) < 0.25}
    second = {d for d in FLEET if place("run", 2, d) < 0.25}
    assert first != second
    places = [place("run", 1, f"box-{n}") for n in range(4000)]
    assert abs(sum(p < 0.25 for p in places) / 4000 - 0.25) < 0.03
    assert all(0 <= p < 1 for p in places)


def test_a_rollout_is_aborted_and_the_devices_go_back_to_what_they_had() -> None:
    """Round 0 went out; round 1 is bad wherever it is used."""
    fleet = Fleet()
    fleet.round()
    for _ in range(3):
        fleet.soak()
    assert fleet.using(0) == 40
    fleet.bad = frozenset(FLEET)
    notes = fleet.round()
    assert notes[0] == "rollout 2: stage 1 of 3, 10% of the devices"
    assert notes[1].startswith("rollout 2: aborted: 1 of ")
    assert fleet.staging.rollout.after == fleet.staging.rollout.until == 2
    assert fleet.staging.rollout.released == 1
    fleet.devices()
    assert fleet.using(0) == 40
    assert fleet.staging.idle
    fleet.bad = frozenset()
    fleet.round()  # the next one leaves the aborted round out
    assert fleet.staging.rollout == msgspec.structs.replace(
        fleet.staging.rollout, number=3, released=1, after=2, until=3
    )
    assert fleet.using(1) == 0
    assert fleet.using(2) > 0


def test_devices_that_did_well_go_back_too_when_others_say_bad() -> None:
    """In the second stage a quarter of the devices fails: all leave the model."""
    fleet = Fleet()
    fleet.round()
    for _ in range(3):
        fleet.soak()
    order = sorted(FLEET, key=lambda d: place("run", 2, d))
    fleet.bad = frozenset(order[4:10])
    fleet.round()
    assert fleet.using(1) == 4
    notes = fleet.soak()
    assert "aborted" in notes[-1]
    fleet.devices()
    assert fleet.using(1) == 0


def test_a_few_failures_do_not_stop_it() -> None:
    order = sorted(FLEET, key=lambda d: place("run", 1, d))
    fleet = Fleet(bad=frozenset(order[10:12]))
    fleet.round()
    for _ in range(3):
        fleet.soak()
    assert fleet.staging.rollout.released == 1
    assert fleet.using(0) == 38


def test_a_stage_without_a_device_that_has_a_model_ends_without_blame() -> None:
    """Nothing is released that nobody tried; the next round is another chance."""
    fleet = Fleet()
    fleet.handle(RoundsDone(1))  # and no device has trained a model
    fleet.devices()
    assert fleet.soak()[0].startswith("rollout 1: dropped")
    assert fleet.staging.rollout.released == 0
    assert fleet.staging.idle
    assert fleet.soak() == []
    fleet.trained = 0
    assert fleet.round()[0].startswith("rollout 2: stage 1")
    assert fleet.staging.rollout.after == 0


@pytest.mark.parametrize("devices", [1, 2, 3, 7])
def test_a_small_fleet_has_at_least_one_device_in_the_first_stage(devices: int) -> None:
    staging = Staging(CONFIG, "run", Plan.initial(0), set(FLEET[:devices]))
    planned = staging.handle(RoundsDone(1), 0.0)[0]
    assert isinstance(planned, Planned)
    staging.handle(PlanKept(planned.plan), 0.0)
    reached = [d for d in FLEET[:devices] if may_use(staging.rollout, "run", d, 0)]
    assert len(reached) == 1


def test_a_device_that_goes_offline_has_still_said_what_it_said() -> None:
    fleet = Fleet()
    fleet.round()
    for device in FLEET:
        fleet.handle(StatusCame(device, Status("i", False, device=device)))
    fleet.now += CONFIG.soak
    assert fleet.handle(Tick()) == ["rollout 1: stage 2 of 3, 50% of the devices"]


def test_a_status_on_another_devices_topic_does_not_count() -> None:
    fleet = Fleet()
    fleet.handle(RoundsDone(1))
    status = Status("i", True, device="liar", rollout=1, model_state="bad")
    assert [fleet.handle(StatusCame(device, status)) for device in FLEET] == [[]] * 40


def test_a_coordinator_that_starts_again_goes_on_with_its_stage(tmp_path: Path) -> None:
    """The plan is on disk before anybody is told; the stage soaks anew; nobody is lost."""
    fleet = Fleet(folder=tmp_path)
    fleet.round()
    fleet.soak()
    reached, told = fleet.using(0), fleet.staging.rollout
    assert fleet.store is not None
    fleet.store.close()
    fleet.store = Store(tmp_path)
    fleet.store.open()
    plan = fleet.store.plan()
    assert plan == fleet.staging.plan
    fleet.staging = Staging(CONFIG, "run", plan, set(FLEET), done=1)
    assert fleet.staging.rollout == told
    assert fleet.handle(Tick()) == []
    assert fleet.devices() == []
    fleet.now += CONFIG.soak - 1
    assert fleet.handle(Tick()) == []
    fleet.now += 1
    assert fleet.handle(Tick()) == ["rollout 1: stage 3 of 3, 100% of the devices"]
    assert fleet.using(0) == reached
    fleet.store.close()


def test_a_damaged_plan_is_one_sentence(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open()
    assert store.plan() is None
    store.keep_plan(Plan.initial(3))
    with store._transaction() as journal:
        journal.execute("UPDATE rollout SET plan = '{'")
    with pytest.raises(StoreError, match="damaged"):
        store.plan()
    store.close()


def test_a_rollout_that_begins_in_the_middle_of_a_run_leaves_what_is_there_alone() -> None:
    plan = Plan.initial(12)
    assert all(may_use(plan.rollout, "run", device, 11) for device in FLEET)
    assert not any(may_use(plan.rollout, "run", device, 12) for device in FLEET)


@pytest.mark.parametrize("stages", ["[0.5, 0.2, 1.0]", "[0.5]", "[0.5, 0.5, 1.0]"])
def test_stages_that_make_no_sense_are_refused(tmp_path: Path, stages: str) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text(f'federation = "f"\nstate = "s"\n[rollout]\nstages = {stages}\n')
    with pytest.raises(ConfigError, match=r"rollout\.stages is .*the last must be 1\.0"):
        load(path, CoordinatorConfig)


def test_devices_that_still_export_have_time_to_answer_and_silent_ones_do_not_stall_it() -> None:
    fleet = Fleet()
    fleet.handle(RoundsDone(1))
    fleet.now += CONFIG.soak
    assert fleet.handle(Tick()) == []  # nobody has answered
    fleet.now += UNANSWERED
    assert fleet.handle(Tick()) == [
        "rollout 1: dropped: no device that it reached has used a new model"
    ]
