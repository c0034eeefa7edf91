"""The simulation finds bugs: each of these is planted, and must be found within a few seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from fededge.errors import FedEdgeError
from fededge.flat import Vector
from fededge.methods import Private
from fededge.storage import pieces
from fededge.wire.encoding import RESIDUE
from fededge.wire.messages import Manifest, Reply, Report
from fededge_agent.store import AgentStore
from fededge_server.executor import Command
from fededge_server.machine import events
from fededge_server.machine.participants import Participant
from fededge_server.machine.updates import Updates
from fededge_server.running import RunningCoordinator
from fededge_server.store import Store
from fededge_server.store.spool import Reader
from tests.faults.oracle import BrokenError
from tests.faults.schedules import FAULTS, KINDS, run_seed
from tests.faults.world import World

SEEDS = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def finds() -> str:
    """What the first broken run says; empty if none breaks."""
    for seed in range(SEEDS):
        try:
            run_seed(seed)
        except (AssertionError, FedEdgeError) as error:
            return str(error)
    return ""


def acknowledge_before_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: Store, version: str, device: str, facts: Manifest, read: Reader) -> Vector:
        """The update is read and accepted; to make it durable is left for later."""
        with self._update(version, device).open("rb") as file:
            return read(file)

    monkeypatch.setattr(Store, "check", check)


def forget_a_chunk_on_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pieces.arrived

    def arrived(path: Path, facts: Manifest) -> frozenset[int]:
        """A process that starts again takes a chunk for come that is not there."""
        found = real(path, facts)
        missing = sorted({*range(facts.chunks)} - found)
        return found | {*missing[:1]} if found else found

    monkeypatch.setattr(pieces, "arrived", arrived)


def count_a_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Updates.report

    def report(self: Updates, device: str, report: Report, now: float) -> list[events.Command]:
        """A report that comes again counts again."""
        one = self.state.participants.of(device)
        if one.stored is not None and one.stored.version == report.version:
            twice = {name: 2 * value for name, value in report.scalars.items()}
            one.stored = msgspec.structs.replace(report, scalars=twice)
        return real(self, device, report, now)

    monkeypatch.setattr(Updates, "report", report)


def accept_a_stale_version(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Updates.verdict

    def verdict(self: Updates, one: Participant, report: Report, now: float) -> Reply | None:
        """What was trained from the version before is taken for this round."""
        reply = real(self, one, report, now)
        stale = reply is not None and reply.kind == "late"
        return None if stale and self.state.phase == "open" else reply

    monkeypatch.setattr(Updates, "verdict", verdict)


def lose_the_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    real = AgentStore.private

    def private(self: AgentStore, run: str = "", wanted: Callable[[str], bool] = bool) -> Private:
        """A restarted agent begins without the residue."""
        kept = real(self, run, wanted)
        if not wanted(RESIDUE) or getattr(self, "warm", False):
            return kept
        self.warm = True  # type: ignore[attr-defined]
        return kept.without(RESIDUE)[0]

    monkeypatch.setattr(AgentStore, "private", private)


def mark_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store._write_seal

    def write_seal(self: Store) -> None:
        """The mark tells of a version that a crash can still undo."""
        real(self)
        self._mark()

    monkeypatch.setattr(Store, "_write_seal", write_seal)


def ask_for_what_is_not_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RunningCoordinator._work_off

    def work_off(self: RunningCoordinator, batch: Sequence[Command]) -> None:
        """A command that finds the disk full does not end its batch."""
        for command in batch:
            real(self, [command])

    monkeypatch.setattr(RunningCoordinator, "_work_off", work_off)


@pytest.mark.slow
def test_chunks_that_nobody_expects_are_seen_to_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as bugged:
        ask_for_what_is_not_expected(bugged)
        with pytest.raises(BrokenError, match="is asked to send chunks that nobody expects"):
            run_with_full_disks()


def run_with_full_disks() -> None:
    for seed in range(SEEDS):
        World(seed, KINDS["all"], FAULTS["disks are full at times"]).run()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (acknowledge_before_fsync, "acknowledged, and is not durable"),
        (forget_a_chunk_on_reconnect, "put together wrongly"),
        (count_a_duplicate, "counts .*, it reported"),
        (accept_a_stale_version, "acknowledged after a merge without it"),
        (lose_the_residue, "began from another private state"),
        (mark_before_the_commit, "entries are missing"),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bugged:
        plant(bugged)
        with pytest.raises(AssertionError, match=finding):
            raise AssertionError(finds())
