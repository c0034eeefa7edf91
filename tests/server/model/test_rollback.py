"""Going back to an earlier version: what an operator asks for, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fededge.errors import RefusedError, StoreError
from fededge.storage.files import lock_folder
from fededge.wire.messages import State, decode, encode
from fededge_server.executor import GiveOrder
from fededge_server.machine.fleet.orders import PinOrder
from fededge_server.model import rollback
from fededge_server.model.rollback import RollbackRequest, go_back, versions
from fededge_server.running import RunningCoordinator
from fededge_server.store import Progress, Store
from tests.faults.processes import CoordinatorService
from tests.faults.schedules import KINDS
from tests.faults.world import World
from tests.server.model.test_merging import LAYOUT, vector


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run with three versions, the first of which was pruned."""
    store = Store(tmp_path / "state")
    store.open()
    for number in range(3):
        sha256 = LAYOUT.sha256(vector(number))
        progress = Progress(number, f"{number:06d}-{sha256[:16]}", sha256, number / 10)
        store.advance(progress, LAYOUT, vector(number), {}, {}, None)
    store.prune(2)
    store.close()
    return store.folder


def test_the_versions_are_listed_with_their_accuracy_and_whether_they_are_there(
    folder: Path,
) -> None:
    first, second, third = versions(folder)
    assert first.endswith("accuracy 0.0%  (its model was pruned)")
    assert second.startswith("000001-")
    assert third.endswith("accuracy 20.0%")


def test_a_version_that_was_pruned_is_refused_at_once(folder: Path) -> None:
    pruned = next(versions(folder)).split()[0]
    with pytest.raises(StoreError, match=f"{pruned} was pruned"):
        go_back(folder, pruned)


def test_a_version_that_never_was_is_refused_at_once(folder: Path) -> None:
    with pytest.raises(StoreError, match="there is no version '000009-ffffffffffffffff'"):
        go_back(folder, "000009-ffffffffffffffff")
    assert not RollbackRequest(folder).open


def test_a_folder_without_a_journal_has_nothing_to_go_back_to(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no journal"):
        go_back(tmp_path, "")


def test_a_coordinator_that_does_not_run_finds_the_wish_when_it_starts(folder: Path) -> None:
    version = Store(folder).history()[1].version
    assert "does not run: it goes back when it starts" in go_back(folder, version)
    assert RollbackRequest(folder).read() == version


def test_a_coordinator_that_does_not_answer_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback, "PATIENCE", 0.2)
    with lock_folder(folder, "us"), pytest.raises(RefusedError, match="has not gone back within"):
        go_back(folder, "")


def test_a_refusal_reaches_the_operator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(seconds: float) -> None:
        RollbackRequest(folder).refuse("no version is known to be good")

    monkeypatch.setattr("fededge_server.model.rollback.time.sleep", refusing)
    with lock_folder(folder, "us"), pytest.raises(RefusedError, match="known to be good"):
        go_back(folder, "")


def test_a_wish_that_cannot_be_read_is_one_sentence(folder: Path) -> None:
    request = RollbackRequest(folder)
    request.path.write_bytes(b"{")
    with pytest.raises(StoreError, match=r"rollback.json: unreadable .* run the command again"):
        request.read()


@pytest.fixture
def world() -> Iterator[World]:
    """A federation of which two rounds are done, without faults."""
    made = World(0, KINDS["all"])
    with made.disk.mounted():
        made.populate()
        while made.oracle.progress is None or made.oracle.progress.rounds_done < 2:
            made.calm_step()
        yield made
        for process in made.processes:
            if process.service is not None:
                process.service.abandon()


def running(world: World) -> RunningCoordinator:
    assert isinstance(world.coordinator.service, CoordinatorService)
    assert world.coordinator.service.running is not None
    return world.coordinator.service.running


def finish(world: World) -> list[Progress]:
    world.oracle.excused |= world.oracle.outstanding  # what the round had is given up
    for _ in range(500):
        if world.at_rest:
            break
        world.calm_step()
    return Store(world.coordinator.folder).history()


def test_the_run_goes_on_from_the_model_that_was_asked_for(world: World) -> None:
    before = Store(world.coordinator.folder).history()
    request = RollbackRequest(world.coordinator.folder)
    request.make(before[1].version)
    world.coordinator.tick()
    assert not request.open
    after = finish(world)
    assert after[3].restored == before[1].version
    assert after[3].sha256 == before[1].sha256
    assert [progress.rounds_done for progress in after] == [0, 1, 2, 3]


def test_a_pinned_version_can_be_gone_back_to_long_after(world: World) -> None:
    """Only the last version's files are kept, and those of the pinned one."""
    parts, request = running(world).parts, RollbackRequest(world.coordinator.folder)
    first, second = parts.store.history()[:2]
    running(world).do(GiveOrder(PinOrder(first.version), lambda outcome: None))
    parts.judge.health.good.clear()  # it names a version whose files are kept, too
    parts.store.prune(1)
    assert not parts.store.kept(second.version)
    request.make(second.version)
    world.coordinator.tick()
    assert "restore a backup" in request.refused()
    request.make(first.version)
    world.coordinator.tick()
    after = finish(world)
    assert (after[3].restored, after[3].sha256) == (first.version, first.sha256)


def test_without_a_good_version_the_wish_is_refused_and_the_run_goes_on(world: World) -> None:
    running(world).parts.judge.health.good.clear()
    request = RollbackRequest(world.coordinator.folder)
    request.make("")
    world.coordinator.tick()
    assert not request.open
    assert "no version is known to be good; name one with --to" in request.refused()
    assert finish(world)[-1].restored == ""


def test_a_problem_that_a_method_words_itself_does_not_spoil_the_state(world: World) -> None:
    """Every agent would drop a state whose text has a line break in it."""
    coordinator = running(world)
    problem = "round 3 is without effect: mine\n\x1b[2J" + "x" * 5000
    coordinator.parts.message.problem = problem
    state = coordinator.parts.publisher.ours
    assert decode(encode(state), State).problem.startswith("round 3 is without effect: mine")
