"""Each row of the table in docs/operation.md, on a closed federation of real processes.

Every test begins with two boxes that take part, and leaves them so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from fededge._internal.processes import Child
from tests.mosquitto import enterable
from tests.operation.town import CONFIG, FINGERPRINT, Town, table, with_settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROWS = table()
BOTH = ("gate-6", "gate-7")


@pytest.fixture(scope="module")
def founded() -> Iterator[Town]:
    with enterable() as folder:
        made = Town(folder)
        try:
            made.found()
            yield made
        finally:
            made.end()


@pytest.fixture
def town(founded: Town) -> Town:
    founded.await_round(*BOTH)
    return founded


def shown(child: Child) -> str:
    return str(re.findall(FINGERPRINT, child.said(10))[0])


def test_the_table_has_every_row() -> None:
    assert len(ROWS) == 20
    assert [name for name, lines in ROWS.items() if not lines] == []


def take_answer(town: Town, child: Child, device: str) -> None:
    """Wait until a box that asked has its answer, and give it data."""
    town.wait(lambda: child.exit_code is not None, "the answer")
    assert child.exit_code == 0, child.said(20)
    town.settle(device)


def test_see_what_was(town: Town) -> None:
    see, draw = ROWS["see what was"]
    assert town.rounds()[-1]["version"] in town.play(see)
    town.play(draw)
    assert (town.folder / "accuracy.png").stat().st_size > 1000


def test_pause_and_go_on(town: Town) -> None:
    (pause,), (resume,) = ROWS["pause"], ROWS["go on"]
    town.play(pause)

    def rests() -> bool:
        said = town.ask("status")
        return bool(said["fleet"]["paused"]) and said["state"]["phase"] != "open"

    town.wait(rests, "the pause")
    done = len(town.rounds())
    assert len(town.rounds()) == done
    town.play(resume)
    town.wait(lambda: len(town.rounds()) > done, "another round")


def test_change_a_setting(town: Town) -> None:
    """The agents follow by themselves, and the history says what has changed."""
    (apply,) = ROWS["change a setting"]
    with_settings(town.folder / "coordinator.toml", "training", lr="0.02")
    assert "training.lr" in town.play(apply)
    town.wait(lambda: "training.lr" in town.fededge("history", *CONFIG), "the new rate")
    town.await_round(*BOTH)


def test_extend_a_run_that_is_done(town: Town) -> None:
    (apply,) = ROWS["extend a run that is done"]

    def ends_with(count: int) -> None:
        with_settings(town.folder / "coordinator.toml", "rounds", count=str(count))
        town.play(apply)

    ends_with(len(town.rounds()) + 2)
    town.wait(lambda: town.ask("status")["state"]["phase"] == "done", "the end of the run")
    ends_with(0)
    town.await_round(*BOTH)


def test_learn_why_a_box_is_absent(town: Town) -> None:
    show, status = ROWS["learn why a box is absent"]
    town.stop("gate-7")
    town.wait(lambda: "absent" in town.play(show), "gate-7 to be absent")
    assert re.search("gate-7.*absent", town.play(status))
    town.start("gate-7")


def test_shut_out_the_bad_one(town: Town) -> None:
    look, quarantine = ROWS["find the bad one, and shut it out"]
    assert "gate-7" in town.play(look)
    town.play(quarantine)
    assert "quarantine gate-7: its lens is covered" in town.fededge("history", *CONFIG)
    assert town.device("gate-7")["standing"] == "quarantined"
    town.await_round("gate-6")
    town.play(ROWS["take it back"][0])


def test_revoke_and_take_back(town: Town) -> None:
    """The broker cuts the box off, and its agent says so and stays up."""
    agent = town.services["gate-7"]
    assert "broker" in town.play(ROWS["revoke a stolen box"][0])
    town.wait(lambda: "connection" in agent.said(3) or "refus" in agent.said(3), "it to notice")
    town.await_round("gate-6")
    assert agent.exit_code is None
    town.play(ROWS["take it back"][0])


def test_roll_back(town: Town) -> None:
    """To the version before the newest: by now the page's own example is pruned."""
    look, back = ROWS["roll back"]
    version = town.rounds()[-2]["version"]
    assert version[:6] in town.play(look)
    town.play(back.replace("000001", version[:6]))

    def restored() -> bool:
        return any(one.get("restored") == version for one in town.rounds())

    town.wait(restored, f"the model of version {version}")


def test_back_up_and_restore(town: Town) -> None:
    """The run goes on from the backup: same versions, same hashes."""
    for line in ROWS["back up"]:
        town.play(line)
    kept = town.rounds()[:2]
    for line in ROWS["restore"]:
        town.play(line)
    assert town.rounds()[:2] == kept


def test_move_the_coordinator(town: Town) -> None:
    backup, stop, restore, start = ROWS["move the coordinator to another machine"]
    town.play(backup)
    town.play(stop)
    kept = town.rounds()[:2]
    (town.folder / "state").rename(town.folder / "old-machine")
    town.play(restore)
    town.play(start)
    assert town.rounds()[:2] == kept


def test_upgrade(town: Town) -> None:
    """What a new version does to an old folder is in test_older_version."""
    before = town.rounds()[:2]
    for line in ROWS["upgrade"]:
        town.play(line)
    assert town.rounds()[:2] == before


def test_rotate_the_key(town: Town) -> None:
    prepare, restart, finish, again = ROWS["rotate the key that signs models"]
    town.play(prepare)
    for device in BOTH:
        public = (town.folder / "keys" / "signing.pub").read_bytes()
        (town.boxes[device] / "signing.pub").write_bytes(public)
        town.play(restart, box=device)
    town.play(finish)
    town.play(again)


def test_rotate_certificates(town: Town) -> None:
    before = (town.folder / "pki" / "coordinator.crt").read_bytes()
    for line in ROWS["rotate certificates"]:
        town.play(line)
    assert (town.folder / "pki" / "coordinator.crt").read_bytes() != before


def test_add_a_box(town: Town) -> None:
    enroll, pending, accept, start = ROWS["add a box"]
    child = town.enroll(enroll, "gate-8")
    assert f"gate-8  {shown(child)}" in town.play(pending)
    town.play(accept, fingerprint=shown(child))
    take_answer(town, child, "gate-8")
    town.play(start, box="gate-8")
    town.await_round(*BOTH, "gate-8")
    town.stop("gate-8")
    town.fededge("devices", "forget", "gate-8", *CONFIG)


def test_replace_a_box(town: Town) -> None:
    enroll, accept, start = ROWS["replace a broken box by a new one of the same name"]
    town.stop("gate-7")
    child = town.enroll(enroll, "gate-7")
    town.play(accept, fingerprint=shown(child))
    take_answer(town, child, "gate-7")
    town.play(start, box="gate-7")
    town.await_round(*BOTH)


def test_remove_a_box(town: Town) -> None:
    drain, stop, forget = ROWS["remove a box"]
    town.play(drain)
    town.await_round("gate-6")
    town.play(stop)
    town.play(forget)
    assert town.device("gate-7") == {}
    town.start("gate-7")


def test_two_federations(town: Town) -> None:
    lines = ROWS["have two federations"]
    (town.folder / "doors").mkdir()
    for line in lines:
        town.play(line)
    log = town.services["coordinator@doors"]
    town.wait(lambda: "connected to" in log.said(20), "the second coordinator")
    town.stop("coordinator@doors")
