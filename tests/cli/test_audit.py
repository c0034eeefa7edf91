"""`fededge audit` reads the ledger, and refuses an invalid one."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from fededge.cli import main
from fededge.storage.sealed import sealed


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text('federation = "f"\ndevice = "box"\nstate = "state"\n')
    (tmp_path / "state").mkdir()
    return path


def ledger(config: Path, text: str) -> None:
    """Write a ledger as the agent does; text that is not JSON is written unchanged."""
    data = text.encode()
    with contextlib.suppress(ValueError):
        data = sealed(json.loads(data))
    (config.parent / "state" / "ledger.json").write_bytes(data)


def test_kinds_are_summed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger(config, '{"tensor model": 4000, "scalar loss": 12, "scalar v_m": 8, "status": 100}')
    assert main(["audit", "--config", str(config)]) == 0
    lines = {line.split("│")[1].strip(): line for line in capsys.readouterr().out.splitlines()[3:-1]
             if line.count("│") > 2}  # fmt: skip
    assert "20" in lines["all scalar"]
    assert "4,120" in lines["all"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "unreadable"),
        ('{"status": "many"}', "unreadable"),
        ('{"status": 1, "labels": 7}', "has fields that no agent sends: labels"),
    ],
)
def test_a_wrong_ledger_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    ledger(config, text)
    assert main(["audit", "--config", str(config)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_names_in_the_ledger_are_words_not_orders(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    name = "tensor [red]a[/red] :skull: \x1b[2J\u202e\u2028b"
    ledger(config, json.dumps({name: 7}))
    assert main(["audit", "--config", str(config)]) == 0
    said = capsys.readouterr().out
    assert r"tensor [red]a[/red] :skull: \x1b[2J\u202e\u2028b" in said
    ledger(config, json.dumps({"\x1b[2J\n": 7}))
    assert main(["audit", "--config", str(config)]) == 2
    assert capsys.readouterr().err.endswith("no agent sends: \\x1b[2J\\n\n")


def test_without_a_ledger_nothing_has_left(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--config", str(config)]) == 2
    assert "nothing has left this device yet" in capsys.readouterr().err
