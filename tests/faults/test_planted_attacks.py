"""The simulation finds holes that a hostile device can use: each is planted, and must be found."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fededge.federated import aggregation
from fededge.flat import Vector
from fededge.wire.messages import Reply, Report, round_of
from fededge_server.machine.events import Command
from fededge_server.machine.facts import RunFacts
from fededge_server.machine.fleet.eligibility import Eligibility
from fededge_server.machine.fleet.participants import Participant
from fededge_server.machine.rounds import round_end
from fededge_server.machine.rounds.round_end import RoundEnd
from fededge_server.machine.updates import updates
from fededge_server.machine.updates.report_checks import flaw
from fededge_server.machine.updates.updates import Updates
from fededge_server.model import merging
from fededge_server.model.culprits import Sifted
from fededge_server.model.merging import Current, Merging
from tests.faults.oracle import BrokenError
from tests.faults.schedules import HOSTILE_KINDS, at_peace, first_break, hostile_seeds

SEEDS = 200


@pytest.fixture(autouse=True, scope="module")
def measured() -> None:
    """Measure the duration of undisturbed runs before a bug is planted."""
    for name in HOSTILE_KINDS:
        at_peace(name)


def believe_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Updates.verdict

    def verdict(self: Updates, one: Participant, report: Report, now: float) -> Reply | None:
        """The report alone decides which round an update is for."""
        if self.state.phase == "open" and round_of(report.version) >= self.state.round:
            report = msgspec.structs.replace(report, version=self.state.version)
        return real(self, one, report, now)

    monkeypatch.setattr(Updates, "verdict", verdict)


def ask_nobody_whom_it_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Updates.verdict

    def verdict(self: Updates, one: Participant, report: Report, now: float) -> Reply | None:
        """Any device with an update of the version may send it."""
        reply = real(self, one, report, now)
        return None if reply is not None and "was not asked" in reply.reason else reply

    monkeypatch.setattr(Updates, "verdict", verdict)


def let_a_merge_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Merging.check

    def check(
        self: Merging, device: str, report: Report, current: Current, limit: float, data: memoryview
    ) -> float:
        """Any finite update is taken: the merge will see."""
        robust = msgspec.structs.replace(self.robust, max_value=math.inf)
        return real(replace(self, robust=robust), device, report, current, math.inf, data)

    def sift(suspects: Sequence[str], merge: Callable[[Sequence[str]], Any]) -> Sifted[Any]:
        return Sifted(merge(suspects))

    def outliers(self: RoundEnd, now: float) -> list[Command]:
        return []

    monkeypatch.setattr(Merging, "check", check)
    monkeypatch.setattr(RoundEnd, "outliers", outliers)
    monkeypatch.setattr(merging, "sift", sift)


def bound_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_values(self: Merging, model: Vector) -> None:
        """As with robust.max_value = inf."""

    def norm_limit(norms: Collection[float], factor: float, start: float, fleet: int = 0) -> float:
        """As with robust.norm_factor = 0."""
        return math.inf

    monkeypatch.setattr(Merging, "_check_values", check_values)
    monkeypatch.setattr(round_end, "norm_limit", norm_limit)


def believe_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def capped(weights: Mapping[str, float], share: float) -> Mapping[str, float]:
        return weights

    def trusting(facts: RunFacts, report: Report, announced: int) -> str:
        return flaw(facts, report, 2**53)

    monkeypatch.setattr(aggregation, "capped", capped)
    monkeypatch.setattr(merging, "capped", capped)
    monkeypatch.setattr(updates, "flaw", trusting)


def wait_for_the_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(self: RoundEnd, now: float) -> None:
        """No slack: all have until the deadline."""

    def leased(self: Eligibility, one: Participant, now: float) -> bool:
        return True

    def missed(self: Eligibility, one: Participant, took: float, now: float) -> float:
        return 0.0

    monkeypatch.setattr(RoundEnd, "cut_off", cut_off)
    monkeypatch.setattr(Eligibility, "leased", leased)
    monkeypatch.setattr(Eligibility, "missed", missed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (believe_the_round, r"^coordinator ended: .*there is no version "),
        (ask_nobody_whom_it_asked, "which nobody asked for"),
        (let_a_merge_raise, "^coordinator ended: MethodError: "),
        (bound_nothing, "has the number"),
        (believe_the_weights, r"has \d+% of the next version"),
        (wait_for_the_silent, "the rounds take more than"),
    ],
)
def test_a_planted_hole_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bugged:
        plant(bugged)
        found = first_break(hostile_seeds(SEEDS), BrokenError)
        assert re.search(finding, found), found
