"""Silent devices delay a few rounds; then no round waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fededge.wire.messages import Status, encode
from tests.security.fleet import ACCOMPLICE, GHOST, HONEST, ROGUE, Fleet, Run
from tests.security.hostile_device import HostileDevice

pytestmark = pytest.mark.slow

ROUNDS = 10
MOST = 4
"""Ten rounds with a silent device take at most so many times as long as ten without, …"""

LEAST_WAIT = 10.0
"""… where a turn takes seconds. Where it takes less, each of two silences costs ten seconds."""


def ten_rounds(run: Run) -> float:
    """The seconds that ten rounds take, measured from the end of the next one."""
    first = run.rounds_done + 1
    run.wait(lambda: run.rounds_done >= first, "a round")
    start = time.monotonic()
    run.wait(lambda: run.rounds_done >= first + ROUNDS, "ten rounds", 300.0)
    return time.monotonic() - start


@contextmanager
def heartbeat(device: HostileDevice, activity: str) -> Iterator[None]:
    """Say the same every second."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(1.0):
            device.announces(activity=activity)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_ten_rounds_with_a_silent_device_take_a_few_times_as_long(fleet: Fleet) -> None:
    """One after the other: ready and never answering; gone, but for its retained status; training
    for ever, with signs of life.
    """
    rounds = {"count": 500, "min_devices": 2, "lease": 5.0, "slack": 5.0}
    with fleet.run(rounds) as run:
        alone = ten_rounds(run)
        limit = MOST * alone + 2 * LEAST_WAIT
        with run.hostile() as rogue, heartbeat(rogue, "ready"):
            rogue.asked()
            assert ten_rounds(run) < limit
        with run.hostile(ACCOMPLICE) as gone:
            gone.announces()
            gone.asked()
            gone.session.stop()  # nobody says that it left: what is retained stays
            assert ten_rounds(run) < limit
            gone.session.start()
        with run.hostile(GHOST) as ghost, heartbeat(ghost, "training"):
            ghost.announces()
            ghost.asked()
            assert ten_rounds(run) < limit
        run.kill()
    for device in (ROGUE, ACCOMPLICE, GHOST):
        assert f"{device}: did not answer, backs off for" in run.log
    assert f"{ACCOMPLICE}: gave no sign of life for 5 s: gone" in run.log
    assert {device for round_ in run.merged() for device in round_} == set(HONEST)


def test_a_retained_status_does_not_stand_for_a_device(fleet: Fleet) -> None:
    """The retained status of a device that is gone counts for one lease, and only once."""
    rounds = {"count": 2, "lease": 5.0}
    with fleet.run(rounds) as run, run.hostile() as rogue:
        rogue.announces()
        rogue.asked()
        gone = Status(rogue.instance, False, device=ROGUE)
        rogue.says("status", encode(gone), retain=True)
        rogue.announces(device="gate-1")  # in another one's name: dropped
        rogue.announces(layout="0" * 64)
        rogue.says("status", b"nonsense", retain=True)
        run.wait(lambda: run.rounds_done >= 1, "a round without it")
        run.kill()
    assert sorted(run.merged()[0]) == list(HONEST)
    assert "a status of device 'gate-1' came on this one's topic: dropped" in run.log
