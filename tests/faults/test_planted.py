"""The simulation finds bugs: each of these is planted, and must be found within a few seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fededge.config import AgentConfig
from fededge.errors import FedEdgeError
from fededge.methods import Private
from fededge.service.commands import CommandQueue
from fededge.storage import pieces
from fededge.wire.encoding import RESIDUE
from fededge.wire.messages import Manifest, Reply, Report
from fededge_agent.trainer.turn_files import TurnFiles
from fededge_agent.trainer.turns import DeviceTurns
from fededge_server.executor import CommandExecutor
from fededge_server.machine import events
from fededge_server.machine.coordinator import CoordinatorMachine
from fededge_server.machine.fleet.order_effects import EFFECTS, OrderEffects
from fededge_server.machine.fleet.orders import DrainOrder, PauseOrder, QuarantineOrder
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.fleet.standings import Standing
from fededge_server.machine.updates.updates import Updates
from fededge_server.store import CheckedUpdate, Store, spool
from fededge_server.store.tables import JournalTables
from tests.faults.oracle import BrokenError
from tests.faults.schedules import FAULTS, KINDS, first_break
from tests.faults.world import World

SEEDS = 20


def acknowledge_before_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update is read and accepted; to make it durable is left for later."""
    monkeypatch.setattr(Store, "sync", lambda self, places: None)


def sync_files_without_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "fsync_folder", lambda folder: None)


def acknowledge_before_the_group_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CommandExecutor._check

    def check(self: CommandExecutor, command: events.Check) -> list[Any]:
        before = len(self.group)
        found = real(self, command)
        return [*found, *(events.Stored(u.device, u.report, u.norm) for u in self.group[before:])]

    monkeypatch.setattr(CommandExecutor, "_check", check)


def take_all_but_the_last_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    real = JournalTables.accept

    def accept(self: JournalTables, *updates: CheckedUpdate) -> None:
        real(self, *(updates[:-1] if len(updates) > 1 else updates))

    monkeypatch.setattr(JournalTables, "accept", accept)


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

    def report(self: Updates, event: events.ReportCame, now: float) -> list[events.Command]:
        """A report that comes again counts again."""
        one, again = self.state.participants.of(event.device), event.report
        if one.stored is not None and one.stored.version == again.version:
            twice = {name: 2 * value for name, value in again.scalars.items()}
            one.stored = msgspec.structs.replace(again, scalars=twice)
        return real(self, event, now)

    monkeypatch.setattr(Updates, "report", report)


def accept_a_stale_version(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Updates.verdict

    def verdict(self: Updates, one: Participant, report: Report, now: float) -> Reply | None:
        """An update trained from the previous version is accepted for this round."""
        reply = real(self, one, report, now)
        stale = reply is not None and reply.kind == "late"
        return None if stale and self.state.phase == "open" else reply

    monkeypatch.setattr(Updates, "verdict", verdict)


def lose_the_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, real = DeviceTurns.__init__, TurnFiles.private
    fresh: set[Path] = set()

    def begin_again(self: DeviceTurns, config: AgentConfig) -> None:
        begin(self, config)
        fresh.add(self.folder)

    def private(self: TurnFiles, run: str = "", wanted: Callable[[str], bool] = bool) -> Private:
        """A restarted agent begins without the residue."""
        kept = real(self, run, wanted)
        if not wanted(RESIDUE) or self.folder not in fresh:
            return kept
        fresh.remove(self.folder)
        return kept.without(RESIDUE)[0]

    monkeypatch.setattr(DeviceTurns, "__init__", begin_again)
    monkeypatch.setattr(TurnFiles, "private", private)


def mark_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store._write_seal

    def write_seal(self: Store) -> None:
        """The mark tells of a version that a crash can still undo."""
        real(self)
        self._mark()

    monkeypatch.setattr(Store, "_write_seal", write_seal)


def ask_for_what_is_not_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CommandQueue._run

    def run(self: CommandQueue[Any, Any], batch: Sequence[Any]) -> None:
        """A command of the coordinator that finds the disk full does not end its batch."""
        ours = isinstance(self._machine, CoordinatorMachine)
        for part in [[command] for command in batch] if ours else [batch]:
            real(self, part)

    monkeypatch.setattr(CommandQueue, "_run", run)


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
        (sync_files_without_their_names, "acknowledged, and is not durable"),
        (acknowledge_before_the_group_is_committed, "acknowledged, and the journal lacks it"),
        (take_all_but_the_last_of_a_group, "acknowledged, and the journal lacks it"),
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
        found = first_break(range(SEEDS), AssertionError, FedEdgeError)
        assert re.search(finding, found), found


def only_stand(standing: Standing) -> Callable[[OrderEffects, Any, float], list[Any]]:
    """An effect that changes the device's standing, and nothing in the open round."""

    def effect(self: OrderEffects, order: Any, now: float) -> list[Any]:
        self.rounds.participants.of(order.device).standing = standing
        return []

    return effect


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "effect", "finding"),
    [
        (
            QuarantineOrder,
            only_stand(Standing.QUARANTINED),
            "against an order|and is asked|the journal lacks it",
        ),
        (DrainOrder, only_stand(Standing.ACTIVE), "are asked against an order"),
        (PauseOrder, lambda *_: [], "a round begins with .* in a pause"),
    ],
    ids=["quarantine", "drain", "pause"],
)
def test_an_order_without_its_effect_is_found(
    order: type, effect: Any, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EFFECTS, order, effect)
    with pytest.raises(BrokenError, match=finding):
        run_with_orders()


def run_with_orders() -> None:
    for seed in range(SEEDS):
        World(seed, KINDS["any, late ones folded"], FAULTS["an operator gives orders"]).run()
