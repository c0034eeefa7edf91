"""The training's progress travels from the trainer's steps to the status, at a bounded rate."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fededge._internal.torch_process import SignOfWork, report_progress
from fededge_agent.status import StatusWriter


class Sent(list[Any]):
    send = list.append


def test_the_trainer_reports_its_steps_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, now = Sent(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    report = report_progress(cast(Any, sent))
    for step in range(1, 13):
        report(step, 12)
        now[0] += 0.25
    assert sent == [SignOfWork(1, 12), SignOfWork(5, 12), SignOfWork(9, 12)]


def writer(activity: str, steps: tuple[int, int]) -> StatusWriter:
    view = SimpleNamespace(activity=activity, problem="")
    runner = SimpleNamespace(steps=steps, layout_hash="", examples=5, flaw="")
    promotion = SimpleNamespace(describe=dict)
    holder = SimpleNamespace(instance="ab" * 16, rival="")
    parts = (SimpleNamespace(view=view), runner, promotion, SimpleNamespace(problem=""), holder)
    return StatusWriter("cam-1", *cast(Any, parts))


def test_a_training_that_advances_is_told_once() -> None:
    statuses = writer("training", (3, 40))
    assert statuses.advanced
    said = statuses.online()
    assert (said.step, said.steps) == (3, 40)
    assert not statuses.advanced


def test_a_device_that_does_not_train_tells_no_steps() -> None:
    statuses = writer("ready", (40, 40))
    assert not statuses.advanced
    assert (statuses.online().step, statuses.online().steps) == (0, 0)
