"""A service that is started before its broker waits for it, and logs that once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from fededge.errors import RefusedError, TransportError
from fededge.service import repeated_claim
from fededge.service.notify import Notifier
from fededge.service.repeated_claim import RepeatedClaim, StopRequestedError


class Manager(Notifier):
    def __init__(self) -> None:
        super().__init__("somewhere")
        self.heard: list[str] = []

    def _send(self, text: str) -> None:
        self.heard.append(text)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_claim, "FIRST_PAUSE", 0.001)


def failing(*reasons: str) -> tuple[Iterator[str], list[object]]:
    return iter(reasons), []


def test_it_tries_until_the_broker_is_there_and_logs_each_reason_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reasons, calls, manager, progress = *failing("no route", "no route", "refused"), Manager(), []

    def claim(*arguments: object) -> None:
        calls.append(arguments)
        if reason := next(reasons, ""):
            raise TransportError(reason)

    with caplog.at_level(logging.INFO):
        RepeatedClaim(claim, manager, lambda: progress.append(1))("name", 7)
    assert calls == [("name", 7)] * 4
    assert len(progress) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for the broker: no route",
        "waiting for the broker: refused",
    ]
    assert manager.heard[0] == "READY=1"
    assert manager.heard[-1] == "STATUS=connected"


def test_no_pause_looks_like_a_hang_to_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_claim, "FIRST_PAUSE", 8.0)
    waited: list[float] = []
    monkeypatch.setattr(RepeatedClaim, "_wait", lambda self, seconds: waited.append(seconds))
    reasons = iter(["no route"] * 4)

    def claim() -> None:
        if reason := next(reasons, ""):
            raise TransportError(reason)

    manager = Manager()
    manager.watchdog = 40.0
    RepeatedClaim(claim, manager, lambda: None)()
    assert waited == [8.0, 10.0, 10.0, 10.0]


def test_a_name_that_is_taken_is_not_waited_for() -> None:
    def claim() -> None:
        raise RefusedError("taken")

    with pytest.raises(RefusedError):
        RepeatedClaim(claim, Manager(), lambda: None)()


def test_a_stop_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_claim, "FIRST_PAUSE", 600.0)

    def claim() -> None:
        raise TransportError("no route")

    waits = RepeatedClaim(claim, Manager(), lambda: None)
    threading.Timer(0.1, waits.stop).start()
    with pytest.raises(StopRequestedError):
        waits()
