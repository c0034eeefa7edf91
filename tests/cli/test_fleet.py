"""`fededge devices`, `pause`, `resume` and `history`, while the coordinator is down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fededge.cli import main

Run = Callable[..., str]


@pytest.fixture
def run(config: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> str:
        assert not main([*words, "--config", str(config)])
        return capsys.readouterr().out

    return run


def rows(run: Run) -> dict[str, Any]:
    return {one["device"]: one for one in json.loads(run("devices", "list", "--json"))}


@pytest.mark.parametrize(
    ("words", "standing"),
    [
        (["drain", "gate-1"], "drained"),
        (["rest", "gate-1", "--for", "2h"], "rested"),
        (["quarantine", "gate-1", "--reason", "its lens is covered"], "quarantined"),
    ],
)
def test_an_order_stands_until_the_device_is_released(
    run: Run, words: list[str], standing: str
) -> None:
    run("devices", "drain", "gate-2")
    run("devices", *words)
    assert rows(run)["gate-1"]["standing"] == standing
    assert rows(run)["gate-2"]["standing"] == "drained"
    assert standing in run("devices", "show", "gate-1")
    run("devices", "release", "gate-1")
    assert rows(run)["gate-1"]["standing"] == "active"


def test_a_device_that_is_forgotten_is_not_listed(run: Run) -> None:
    run("devices", "drain", "gate-1")
    run("devices", "forget", "gate-1")
    assert "gate-1" not in rows(run)


def test_a_pause_is_in_the_journal_until_it_is_ended(run: Run) -> None:
    assert json.loads(run("pause", "--json"))["changed"]
    assert not json.loads(run("pause", "--json"))["changed"]
    assert json.loads(run("resume", "--json"))["changed"]
    orders = json.loads(run("history", "--json"))["orders"]
    assert [order["order"] for order in orders] == ["pause", "resume"]


def test_the_history_has_each_round_and_can_be_plotted(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    history = json.loads(run("history", "--json"))
    assert history["rounds"][1]["participants"] == 2
    picture = tmp_path / "rounds.png"
    run("history", "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "gate-9"], "no device 'gate-9'"),
        (["rest", "gate-1", "--for", "soon"], "soon"),
    ],
)
def test_a_mistake_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["devices", *words, "--config", str(config)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
