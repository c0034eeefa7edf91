"""`fededge install-service`: the files, the credentials, the refusals; and the hardening."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fededge.cli import main
from fededge.cli.operation import install_service, unit_files
from fededge.cli.operation.unit_files import ServiceUnit

ROLES = ("coordinator", "agent")


def keys(text: str) -> dict[str, str]:
    """The last value of each key of a unit."""
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with systemd where we are root, in a folder."""
    monkeypatch.setattr(unit_files, "SYSTEM_UNITS", tmp_path / "units")
    monkeypatch.setattr(unit_files, "SYSTEM_USERS", tmp_path / "sysusers.d" / "fededge.conf")
    monkeypatch.setattr(ServiceUnit, "config", property(lambda unit: tmp_path / "agent.toml"))
    monkeypatch.setattr(ServiceUnit, "state", property(lambda unit: tmp_path / "state"))
    monkeypatch.setattr(install_service, "_check_machine", lambda unit: None)
    monkeypatch.setattr(install_service, "_make_user", lambda path: None)
    monkeypatch.setattr(install_service, "HIDDEN", ("/home",))
    return tmp_path


def write_config(folder: Path, **broker: str) -> None:
    lines = [f'{key} = "{value}"' for key, value in broker.items()]
    text = ['federation = "gates"', 'device = "gate-7"', 'state = "state"', "[broker]", *lines]
    (folder / "agent.toml").write_text("\n".join(text))


def test_it_says_what_it_wrote_and_what_comes_next(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine / "secret").write_text("hunter2\n")
    (machine / "secret").chmod(0o600)
    write_config(machine, username="gate-7", password_file="secret")
    assert main(["install-service", "agent"]) == 0
    first = capsys.readouterr().out.splitlines()
    written = [Path(line.split()[1]) for line in first if line.startswith("wrote")]
    assert [path.name for path in written] == [
        "fededge-agent.service",
        "credentials.conf",
        "fededge.conf",
    ]
    assert first[-3:] == [
        "next:",
        "  systemctl daemon-reload && systemctl enable --now fededge-agent",
        "  journalctl --follow --unit fededge-agent",
    ]
    drop_in = written[1].read_text()
    assert f"LoadCredential=broker.password_file:{machine / 'secret'}\n" in drop_in
    assert "hunter2" not in drop_in
    assert main(["install-service", "agent"]) == 0
    assert not any(line.startswith("wrote") for line in capsys.readouterr().out.splitlines())


def test_an_instance_shares_the_template_and_has_credentials_of_its_own(machine: Path) -> None:
    (machine / "secret").write_text("hunter2\n")
    (machine / "secret").chmod(0o600)
    write_config(machine, username="gate-7", password_file="secret")
    assert main(["install-service", "agent", "--instance", "gates", "--gpu"]) == 0
    assert (machine / "units" / "fededge-agent@.service").exists()
    drop_ins = machine / "units" / "fededge-agent@gates.service.d"
    assert {path.name for path in drop_ins.iterdir()} == {"credentials.conf", "gpu.conf"}


def test_a_state_folder_that_the_service_cannot_write_to_is_refused(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(machine)
    text = (machine / "agent.toml").read_text().replace('"state"', '"elsewhere"')
    (machine / "agent.toml").write_text(text)
    assert main(["install-service", "agent"]) == 2
    assert f'set state = "{machine / "state"}"' in capsys.readouterr().err


def test_a_configuration_that_the_service_cannot_read_is_refused(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(machine, password="hunter2")
    (machine / "agent.toml").chmod(0o600)
    assert main(["install-service", "agent"]) == 2
    said = capsys.readouterr().err
    assert "password_file" in said
    assert "hunter2" not in said


def test_a_missing_configuration_is_refused(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["install-service", "agent"]) == 2
    assert "fededge init agent > agent.toml" in capsys.readouterr().err


def refusal(monkeypatch: pytest.MonkeyPatch, booted: bool, uid: int, prefix: str) -> Any:
    monkeypatch.setattr(Path, "is_dir", lambda path: booted)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(install_service, "program", lambda: Path(prefix, "bin/fededge"))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    return main(["install-service", "agent"])


@pytest.mark.parametrize(
    ("booted", "uid", "prefix", "said"),
    [
        (False, 0, "/opt/fededge", "was not booted with systemd"),
        (True, 1000, "/opt/fededge", "needs root: use sudo, or --user"),
        (True, 0, "/home/me/.venv", "cannot see /home/me/.venv/bin/fededge"),
    ],
)
def test_a_machine_that_cannot_is_told_so_in_one_sentence(
    booted: bool,
    uid: int,
    prefix: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert refusal(monkeypatch, booted, uid, prefix) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("role", ROLES)
def test_a_dry_run_prints_the_unit_and_writes_nothing(
    role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["install-service", role, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"# /etc/systemd/system/fededge-{role}.service\n" in said
    assert f'fededge" {role} --config %E/fededge/%i/{role}.toml\n' in said


@pytest.mark.parametrize("role", ROLES)
def test_a_users_own_service_asks_for_nothing_that_needs_root(role: Any, tmp_path: Path) -> None:
    (file,) = ServiceUnit(role, "", tmp_path).files(256, {})
    assert file.path == tmp_path / "systemd" / "user" / f"fededge-{role}.service"
    found = keys(file.text)
    assert {"Type", "WatchdogSec", "Restart", "ExecStart", "RestartSteps"} <= {*found}
    assert {"DynamicUser", "User", "ProtectSystem", "After"} & {*found} == set()
    assert found["WantedBy"] == "default.target"


@pytest.mark.parametrize("role", ROLES)
def test_an_old_systemd_gets_no_key_that_it_does_not_know(role: Any) -> None:
    new, old = (next(iter(ServiceUnit(role).files(version, {}))) for version in (254, 252))
    assert {*keys(new.text)} - {*keys(old.text)} == {"RestartSteps", "RestartMaxDelaySec"}


@pytest.mark.parametrize("role", ROLES)
def test_every_start_is_retried_without_a_limit_and_not_every_second(role: Any) -> None:
    found = keys(next(iter(ServiceUnit(role).files(256, {}))).text)
    assert found["Restart"] == "on-failure"
    assert found["StartLimitIntervalSec"] == "0"
    assert int(found["RestartSec"]) >= 10
    assert "RestartPreventExitStatus" not in found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize(
    ("role", "gpu", "most"),
    [("coordinator", False, 1.2), ("agent", False, 1.2), ("agent", True, 1.4)],
)
def test_the_units_are_hardened(role: Any, gpu: bool, most: float, tmp_path: Path) -> None:
    unit, *drop_ins = ServiceUnit(role).files(252, {}, gpu)
    path = tmp_path / unit.path.name
    path.write_text(unit.text)
    if gpu:
        (tmp_path / f"{path.name}.d").mkdir()
        (tmp_path / f"{path.name}.d" / "gpu.conf").write_text(drop_ins[0].text)
    said = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ).stdout
    found = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= most
    assert "Unknown key" not in said


def test_now_starts_it(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start that fails is a sentence that names the log."""
    systemctl = machine / "systemctl"
    monkeypatch.setenv("PATH", f"{machine}:{os.environ['PATH']}")
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {machine}/asked\n')
    systemctl.chmod(0o755)
    write_config(machine)
    assert main(["install-service", "agent", "--now"]) == 0
    asked = (machine / "asked").read_text().splitlines()
    wanted = ["daemon-reload", "enable fededge-agent", "restart fededge-agent"]
    assert [line for line in asked if line != "--version"] == wanted
    systemctl.write_text("#!/bin/sh\necho 'no such unit' >&2\nexit 1\n")
    capsys.readouterr()
    assert main(["install-service", "agent", "--now"]) == 2
    said = capsys.readouterr().err
    assert "no such unit; see journalctl --unit fededge-agent" in said
