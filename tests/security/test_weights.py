"""The weight of one device is capped, whatever number of examples it claims."""

from __future__ import annotations

import numpy as np
import pytest

from tests.security.fleet import ACCOMPLICE, HONEST, Fleet
from tests.security.test_poison import moved

pytestmark = pytest.mark.slow

CLAIMED = 1e15


def test_one_of_four_that_claims_everything_has_half_of_the_say(fleet: Fleet) -> None:
    """Its share is read from the models: it moves a few numbers that the others leave alone."""
    with (
        fleet.run({"count": 500, "min_devices": 4}) as run,
        run.hostile() as rogue,
        run.hostile(ACCOMPLICE) as fourth,
    ):
        fourth.turn = usual = moved(0.05)
        rogue.turn = lambda device, model: None if run.rounds_done > 0 else usual(device, model)
        for device in (fourth, rogue):
            device.announces()
        rogue.asked()
        run.wait(lambda: run.rounds_done >= 1, "a round of four")
        rogue.announces(examples=int(CLAIMED))
        task = rogue.asked(run.rounds_done)
        before = rogue.model(task.version)
        push = np.zeros_like(before)
        push[:100] = 0.1
        excessive = rogue.update(before + push, examples=2 * CLAIMED, version=task.version)
        refused = rogue.tries(excessive)
        assert refused.kind == "refused"
        assert "it claims 2e+15 examples, the device announced 1000000000000000" in refused.reason
        claim = rogue.update(before + push, examples=CLAIMED, version=task.version)
        assert rogue.tries(claim).kind == "accepted"
        number = int(task.version[:6])
        run.wait(lambda: run.rounds_done > number, "its round")
        after = run.vector(run.history()[number + 1].version, rogue.layout)
        run.kill()
    assert "rogue: announces 1000000000000000 examples, 100 before" in run.log
    scalars = run.merged()[number]
    assert sorted(scalars) == sorted([*HONEST, "rogue", ACCOMPLICE])
    assert scalars["rogue"]["examples"] == CLAIMED
    share = float((after - before) @ push / (push @ push))
    assert 0.4 < share < 0.6, "max_weight_share is 0.5"
