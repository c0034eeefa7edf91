"""One update must not ruin a run with default settings; and there is a way back from a bad one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fededge.cli import main
from fededge.flat import Vector
from fededge.wire.messages import State
from tests.security.fleet import HONEST, Fleet, Run
from tests.security.hostile_device import HostileDevice, Update
from tests.security.test_poison import everywhere, moved

pytestmark = pytest.mark.slow

TRAINING: dict[str, Any] = {"epochs": 5, "lr": 0.05}
"""Three rounds are enough to see more than chance: 10 %."""

ANYTHING = {"max_value": 1e30, "norm_factor": 0.0}


def test_one_device_of_three_cannot_ruin_a_run_with_default_settings(fleet: Fleet) -> None:
    """3.4e38 in every number; a change 1000 times as long as usual, at first and later."""
    doses = [moved(2500.0), everywhere(3.4e38), moved(1000.0)]
    data = {"source": "npz", "root": str(fleet.images)}
    with fleet.run({"count": 4}, training=TRAINING, data=data) as run, run.hostile() as rogue:
        left = iter(doses)
        rogue.turn = lambda device, model: next(left)(device, model)
        rogue.announces()
        run.ends()
    assert [device for device, _ in run.refused()] == ["rogue"] * 3
    assert run.hashes == fleet.simulated(4, **TRAINING), "that of the honest devices alone"
    accuracy = run.history()[-1].accuracy
    assert accuracy is not None
    assert accuracy > 0.35


def silent(device: HostileDevice, model: Vector) -> Update | None:
    """No answer: the round stays open for ten seconds at least, long enough to look at it."""
    return None


def restored(rogue: HostileDevice) -> State | None:
    return next((state for state in rogue.states[::-1] if state.restored), None)


def test_an_operator_goes_back_whether_the_coordinator_runs_or_not(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    with fleet.run({"count": 500}) as run, run.hostile() as rogue:
        rogue.turn = lambda device, model: device.update(model)
        rogue.announces()
        run.wait(lambda: run.rounds_done >= 2, "two rounds")
        first = run.history()[1]
        rogue.turn = silent
        assert main(["rollback", "--config", str(run.config), "--to", first.version]) == 0
        assert f"which has the model of {first.version}" in capsys.readouterr().out
        state = rogue.wait(lambda: restored(rogue), "a state that says so")
        assert state.restored == first.version
        again = next(p for p in run.history() if p.restored)
        assert (again.restored, again.sha256) == (first.version, first.sha256)
        assert run.status(capsys)["state"]["restored"] == first.version

        run.kill()
        initial = run.history()[0]
        assert main(["rollback", "--config", str(run.config), "--to", initial.version]) == 0
        assert "it goes back when it starts" in capsys.readouterr().out
        done = run.rounds_done
        run.again()
        run.wait(lambda: run.history()[-1].restored == initial.version, "the run to go back")
        rogue.turn = lambda device, model: device.update(model)
        rogue.announces()
        run.wait(lambda: run.rounds_done >= done + 3, "the run to go on")
        assert set(run.merged()[-1]) >= set(HONEST)


def test_a_finished_run_goes_back_too(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    with fleet.run({"count": 1, "min_devices": 2}) as run:
        run.ends()
        first = run.history()[0]
        assert main(["rollback", "--config", str(run.config), "--to", first.version]) == 0
        run.again()
        run.ends()
        assert run.history()[-1].restored == first.version
        assert run.status(capsys)["state"]["restored"] == first.version


def test_a_run_goes_back_by_itself_from_a_version_that_has_lost_too_much(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """With all bounds switched off a bad version is planted: its accuracy is that of chance."""
    data = {"source": "npz", "root": str(fleet.images)}
    robust = {**ANYTHING, "roll_back": True, "max_drop": 15.0}
    with (
        fleet.run({"count": 500}, training=TRAINING, data=data, robust=robust) as run,
        run.hostile() as rogue,
    ):
        rogue.turn = moved(1e-3)
        rogue.announces()
        run.wait(lambda: best(run) > 0.35, "a good version")
        rogue.turn = everywhere(1.0)
        back = run.wait(lambda: next((p for p in run.history() if p.restored), None), "a return")
        rogue.turn = silent
        state = rogue.wait(lambda: restored(rogue), "a state that says so")
        assert state.restored == back.restored
        assert "is bad: its accuracy is" in state.problem
        assert "is bad: its accuracy is" in run.status(capsys)["state"]["problem"]
        good = next(p for p in run.history() if p.version == back.restored)
        assert (back.sha256, back.accuracy) == (good.sha256, good.accuracy)
        assert (good.accuracy or 0.0) >= best(run) - 0.15
    bad = run.history()[back.rounds_done - 1]
    assert np.less(bad.accuracy, best(run) - 0.15)


def best(run: Run) -> float:
    return max((p.accuracy or 0.0 for p in run.history()), default=0.0)
