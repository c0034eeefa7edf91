"""`fededge backup` and `fededge restore`: one line each, and mistakes are one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fededge.cli import main
from fededge_agent.store import AgentStore
from fededge_server.store import Progress, Store

COORDINATOR = """
federation = "{federation}"
state = "{state}"
"""
AGENT = COORDINATOR + 'device = "{device}"\n'


def write(path: Path, text: str = COORDINATOR, **values: str) -> str:
    keys = {"federation": "gates", "state": "state", "device": "box", **values}
    path.write_text(text.format(**keys))
    return str(path)


@pytest.fixture
def config(tmp_path: Path) -> str:
    store = Store(tmp_path / "state")
    store.open()
    store.enter(Progress(0, "000000-0123456789abcdef", "0" * 64, None), "f" * 64, {}, None)
    for place in store.version_files("000000-0123456789abcdef"):
        place.write_bytes(b"a model")
    store.close()
    return write(tmp_path / "coordinator.toml")


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([*map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_coordinator_moves_to_another_folder(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "monday.fededge"
    code, out, _ = said(capsys, "backup", file, "--config", config)
    assert code == 0
    about = "coordinator of federation 'gates', version 000000-0123456789abcdef, 5 files, "
    assert out.startswith(f"{file}: {about}")
    code, out, _ = said(capsys, "restore", file, "--check")
    assert (code, about in out) == (0, True)
    other = write(tmp_path / "other.toml", state="elsewhere")
    code, out, _ = said(capsys, "restore", file, "--config", other)
    assert (code, about in out) == (0, True)
    history = Store(tmp_path / "elsewhere").history()
    assert [progress.version for progress in history] == ["000000-0123456789abcdef"]
    code, _, err = said(capsys, "restore", file, "--config", other)
    assert code == 2
    assert "elsewhere: this state folder is in use or holds another state; stop the service" in err


def test_an_agent_is_backed_up_by_its_own_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = AgentStore(tmp_path / "state")
    store.open()
    config, file = write(tmp_path / "agent.toml", AGENT), tmp_path / "agent.fededge"
    code, out, _ = said(capsys, "backup", file, "--config", config)
    assert (code, "agent 'box' of federation 'gates', 0 turns, 2 files" in out) == (0, True)
    other = write(tmp_path / "other.toml", AGENT, state="elsewhere")
    assert said(capsys, "restore", file, "--config", other)[0] == 0
    store.close()


@pytest.mark.parametrize(
    ("text", "values", "ours"),
    [
        (COORDINATOR, {"federation": "doors"}, "that of coordinator of federation 'doors'"),
        (AGENT, {}, "that of agent 'box' of federation 'gates'"),
    ],
)
def test_the_backup_of_another_service_is_refused(
    tmp_path: Path,
    config: str,
    capsys: pytest.CaptureFixture[str],
    text: str,
    values: dict[str, str],
    ours: str,
) -> None:
    file = tmp_path / "backup"
    assert said(capsys, "backup", file, "--config", config)[0] == 0
    other = write(tmp_path / "other.toml", text, state="elsewhere", **values)
    code, _, err = said(capsys, "restore", file, "--config", other)
    assert code == 2
    assert "this is the backup of another service: coordinator of federation 'gates'" in err
    assert ours in err
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, "backup", tmp_path / "no" / "where", "--config", config)
    assert (code, f"{tmp_path / 'no'}: there is no such folder; make it first" in err) == (2, True)
