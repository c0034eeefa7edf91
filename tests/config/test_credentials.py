"""Credentials of a service stand in for the files that the configuration names."""

from __future__ import annotations

from pathlib import Path

from fededge.config import AgentConfig, load
from fededge.config.credentials import credential_files

TEXT = """
federation = "gates"
device = "gate-7"
state = "state"
[broker]
username = "gate-7"
password_file = "secrets/gate-7.password"
"""


def written(folder: Path) -> Path:
    path = folder / "agent.toml"
    path.write_text(TEXT)
    return path


def credential(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o400)


def test_a_credential_replaces_a_file_that_the_service_cannot_read(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    credential(folder, "broker.password_file", "hunter2\n")
    environment = {"CREDENTIALS_DIRECTORY": str(folder)}
    config = load(written(tmp_path), AgentConfig, environment)
    assert config.broker.password == "hunter2"
    assert config.broker.username == "gate-7"


def test_other_credentials_change_nothing(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    credential(secrets, "gate-7.password", "mine\n")
    credential(tmp_path / "credentials", "something.else", "hunter2\n")
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path / "credentials")}
    config = load(written(tmp_path), AgentConfig, environment)
    assert config.broker.password == "mine"
    assert credential_files(config) == {"broker.password_file": secrets / "gate-7.password"}
