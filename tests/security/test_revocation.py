"""`fededge devices revoke` on a real closed broker, while a round waits for the device."""

from __future__ import annotations

import pytest

from fededge.cli import main
from fededge.transport.session import Lost
from tests.security.fleet import ROGUE, Fleet, Run
from tests.security.hostile_device import HostileDevice

pytestmark = pytest.mark.slow


def order(run: Run, action: str) -> int:
    return main(["devices", action, ROGUE, "--config", str(run.config)])


def heard_cut(device: HostileDevice) -> bool:
    """True once the broker has cut the connection of a device that listens itself."""
    inbox = device.session.inbox
    return any(isinstance(inbox.get(), Lost) for _ in range(inbox.qsize()))


def test_a_revoked_device_is_cut_off_and_no_round_waits_for_it(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """A round has asked it and waits, with a deadline far away; its slot is not waited for."""
    rounds = {"count": 500, "min_devices": 3, "quorum": 2, "deadline": 600.0, "slack": 600.0}
    with fleet.run(rounds) as run, run.hostile() as rogue:
        rogue.announces()
        rogue.asked()
        done = run.rounds_done
        rogue._stopping = True  # from here on we read its inbox ourselves
        rogue._thread.join()
        assert order(run, "revoke") == 0
        assert "the broker has cut it off" in capsys.readouterr().out
        run.wait(lambda: heard_cut(rogue), "the end of its connection")
        fleet.wait_for(lambda: "ordered by the operator: revoke" in run.log, "the order")
        rogue.announces()
        rogue.session.stop()
        # Two devices are there, and three must be: no other round begins, but this one ends.
        run.wait(lambda: run.rounds_done == done + 1, "the end of the round")
        assert ROGUE not in run.merged()[-1]
        assert order(run, "revoke") == 0  # again, it changes nothing
        assert order(run, "release") == 0
        assert "the broker lets it in again" in capsys.readouterr().out
        with run.hostile() as back:
            back.announces()
            back.asked()
