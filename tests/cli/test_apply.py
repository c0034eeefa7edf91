"""`fededge apply`, while the coordinator is down: the difference, the question, the order."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from fededge.cli import main
from fededge_server.store import Role, Store

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def new(config: Path) -> Path:
    """The run's configuration with another method and another quorum."""
    path = config.with_name("new.toml")
    text = f'method = "scaffold"\n{config.read_text()}[rounds]\nquorum = 2\n'
    path.write_text(text)
    return path


def roles(config: Path) -> set[Role]:
    return {*Store(config.parent / "state").settings()}


def test_the_difference_is_shown_with_what_it_means_and_nothing_is_done(
    config: Path, new: Path, capsys: Captured
) -> None:
    assert main(["apply", "--config", str(new), "--dry-run", "--json"]) == 0
    found = {one["key"]: one for one in json.loads(capsys.readouterr().out)["differences"]}
    assert found.keys() == {"method", "rounds.quorum"}
    assert (found["rounds.quorum"]["old"], found["rounds.quorum"]["new"]) == ("1", "2")
    assert found["rounds.quorum"]["meaning"] == "from the next round on"
    assert "begins anew, here and on the devices (scaffold.c, " in found["method"]["meaning"]
    assert Role.ORDERED not in roles(config)


def test_an_order_is_in_the_journal_once_it_is_confirmed(
    config: Path, new: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["apply", "--config", str(new)]) != 0
    assert "without a terminal, --yes must say so" in capsys.readouterr().err
    answers = io.StringIO("no\nyes\n")
    monkeypatch.setattr(answers, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", answers)
    assert main(["apply", "--config", str(new)]) != 0
    assert Role.ORDERED not in roles(config)
    capsys.readouterr()
    assert main(["apply", "--config", str(new)]) == 0
    said = capsys.readouterr().out
    assert "A version of its own begins with these settings" in said
    assert "the settings are in the journal" in said
    assert Role.ORDERED in roles(config)
    assert main(["apply", "--config", str(new), "--yes"]) == 0
    assert "nothing to change" in capsys.readouterr().out
    assert main(["history", "--config", str(config)]) == 0
    assert "apply" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ('"bus"', '"car"', "labels cannot change in a run: it is truck, bus, the file says truck"),
        ('"mlpnet"', '"mlpnet"\nhead = "bias-free"', "model cannot change in a run"),
        ("federation", "seed = 5\nfederation", "seed cannot change in a run: it is 0, the file sa"),
        ('"gates"', '"doors"', "federation cannot change in a run: it is gates"),
        ('"state"', '"other"', "a run keeps its state folder"),
    ],
)
def test_what_cannot_change_says_why(
    new: Path, capsys: Captured, before: str, after: str, sentence: str
) -> None:
    new.write_text(new.read_text().replace(before, after, 1))
    assert main(["apply", "--config", str(new), "--yes"]) != 0
    assert sentence in capsys.readouterr().err


def test_settings_that_do_not_fit_each_other_are_refused(new: Path, capsys: Captured) -> None:
    new.write_text(f'{new.read_text()}[robust]\ncombine = "median"\n')
    assert main(["apply", "--config", str(new), "--yes"]) != 0
    assert "robust.combine is 'median', but method 'scaffold'" in capsys.readouterr().err
