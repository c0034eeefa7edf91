"""`fededge init`: what it writes is kept when it runs again, and mistakes are one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fededge.broker import system_service
from fededge.broker.mosquitto import password_matches
from fededge.cli import main
from fededge.cli.operation.unit_files import service_state
from fededge.config import AgentConfig, CoordinatorConfig, load


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["init", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_printed_template_is_a_valid_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "side.toml"
    for side, kind in (("coordinator", CoordinatorConfig), ("agent", AgentConfig)):
        assert main(["init", side, "--federation", "gates", "--broker", "10.0.0.2"]) == 0
        path.write_text(capsys.readouterr().out)
        config = load(path, kind, {})
        assert (config.federation, config.broker.host) == ("gates", "10.0.0.2")
        assert (config.broker.port, config.broker.tls) == (1883, False)


def test_a_device_is_added_and_the_others_keep_what_they_have(tmp_path: Path) -> None:
    pki, broker = tmp_path / "pki", tmp_path / "broker"
    certificates = ["init", "certificates", "--out", str(pki), "--devices"]
    passwords = ["init", "broker", "--out", str(broker), "--devices"]
    assert main([*certificates, "gate-6"]) == main([*passwords, "gate-6"]) == 0
    files = [path for path in [*pki.iterdir(), *(broker / "secrets").iterdir()] if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    lines = (broker / "passwords").read_text()
    assert main([*certificates, "gate-7"]) == main([*passwords, "gate-7"]) == 0
    assert {path: path.read_bytes() for path in files} == before
    assert (pki / "gate-7.crt").exists()
    after = (broker / "passwords").read_text()
    assert after.startswith(lines)
    for line in after.splitlines():
        name, _, stored = line.partition(":")
        secret = (broker / "secrets" / f"{name}.password").read_text().strip()
        assert len(secret) >= 32
        assert password_matches(secret, stored)
        assert secret not in after
    assert after.count("\n") == 3


def test_keys_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = tmp_path / "signing.key", tmp_path / "signing.pub"
    assert main(["init", "key", "--out", str(tmp_path)]) == 0
    before = private.read_bytes(), public.read_bytes()
    capsys.readouterr()
    assert main(["init", "key", "--out", str(tmp_path)]) == 0
    assert f"{private}: kept" in capsys.readouterr().out
    assert (private.read_bytes(), public.read_bytes()) == before
    public.unlink()
    assert main(["init", "key", "--out", str(tmp_path)]) == 0
    assert f"{public}: made" in capsys.readouterr().out
    assert (private.read_bytes(), public.read_bytes()) == before
    private.unlink()
    assert "without its private key" in complaint(["key", "--out", str(tmp_path)], capsys)


def test_keys_that_are_no_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        assert main(["init", "key", "--out", str(tmp_path / name)]) == 0
    (tmp_path / "one" / "signing.pub").replace(tmp_path / "two" / "signing.pub")
    said = complaint(["key", "--out", str(tmp_path / "two")], capsys)
    assert "is not the public key of" in said


@pytest.mark.parametrize("side", ["coordinator", "agent"])
def test_a_configuration_that_is_there_is_kept(
    tmp_path: Path, side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "side.toml"
    assert main(["init", side, "--out", str(path)]) == 0
    edited = path.read_text() + "# mine\n"
    path.write_text(edited)
    capsys.readouterr()
    assert main(["init", side, "--federation", "other", "--out", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: kept as it is\n"
    assert path.read_text() == edited


def test_certificates_say_what_was_made_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "certificates", "--out", str(tmp_path), "--devices", "a"]) == 0
    capsys.readouterr()
    assert main(["init", "certificates", "--out", str(tmp_path), "--devices", "a", "b"]) == 0
    names = {"ca": "kept", "broker": "kept", "coordinator": "kept", "a": "kept", "b": "made"}
    said = [f"{tmp_path / name}.crt: {state}" for name, state in names.items()]
    assert capsys.readouterr().out.splitlines() == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["broker", "--out", "OUT"], "an open broker protects nothing: give --devices"),
        (["broker", "--devices", "gate-6"], "writes several files: give --out DIR"),
        (["certificates"], "writes several files: give --out DIR"),
        (["key", "--out", "OUT/file/below"], "cannot be made"),
        (["certificates", "--out", "OUT", "--devices", "a/b"], "--devices 'a/b' must be 1 to 64"),
        (["broker", "--out", "OUT", "--devices", "coordinator"], "this name is taken"),
        (["certificates", "--out", "OUT", "--devices", "ca"], "this name is taken"),
        (["certificates", "--out", "OUT", "--days", "0"], "--days 0: must be 1 to 36500"),
        (["broker", "--out", "OUT", "--certificates", "OUT"], "--certificates: there is no file"),
        (["broker", "--out", "OUT", "--devices", "a", "--federation", "a b"], "federation 'a b'"),
    ],
)
def test_mistakes(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    given = [word.replace("OUT", str(tmp_path)) for word in arguments]
    assert said in complaint(given, capsys)


def test_a_ca_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.crt").write_text("not a certificate")
    (tmp_path / "ca.key").write_text("not a key")
    assert "cannot be used" in complaint(["certificates", "--out", str(tmp_path)], capsys)


def test_the_data_of_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images").mkdir()
    path = tmp_path / "agent.toml"
    assert main(["init", "agent", "--data", "folder:images", "--out", str(path)]) == 0
    data = load(path, AgentConfig).data
    assert (data.source, data.root) == ("folder", str(tmp_path / "images"))
    assert "no source 'foldr'; did you mean 'folder'?" in complaint(
        ["agent", "--data", "foldr:images"], capsys
    )


def test_a_whole_federation_is_made_by_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run again, it keeps everything."""
    command = ["init", "federation", "--federation", "gates", "--out", str(tmp_path)]
    assert main([*command, "--broker", "broker.example"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("next: fededge coordinator")
    config = load(tmp_path / "coordinator.toml", CoordinatorConfig, {})
    assert (config.broker.host, config.broker.tls) == ("broker.example", True)
    named = (config.signing_key, config.broker.ca, config.broker.certificate, config.broker.key)
    assert all(Path(path).is_file() for path in named)
    carried = {path.name for path in (tmp_path / "pki" / "enrolment").iterdir()}
    assert carried == {"ca.crt", "enrol.crt", "enrol.key"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    assert main([*command, "--broker", "broker.example"]) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert f"{tmp_path / 'coordinator.toml'}: kept as it is" in capsys.readouterr().out


def test_a_written_configuration_finds_the_files_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["init", "certificates", "--out", "pki"]) == main(["init", "key", "--out", "k"]) == 0
    )
    command = ["init", "coordinator", "--certificates", "pki", "--signing-key", "k/signing.key"]
    assert main([*command, "--out", "doors/coordinator.toml"]) == 0
    config = load(tmp_path / "doors" / "coordinator.toml", CoordinatorConfig, {})
    assert Path(config.broker.ca) == tmp_path / "pki" / "ca.crt"
    assert Path(config.signing_key) == tmp_path / "k" / "signing.key"


@pytest.mark.parametrize(
    ("path", "state"),
    [
        ("/etc/fededge/agent.toml", "/var/lib/fededge-agent"),
        ("/etc/fededge/doors/coordinator.toml", "/var/lib/fededge-coordinator@doors"),
        ("/etc/fededge/other.toml", "state"),
        ("/srv/agent.toml", "state"),
    ],
)
def test_the_configuration_of_a_service_names_its_state(path: str, state: str) -> None:
    assert service_state(Path(path)) == state


def test_a_configuration_can_be_read_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert main(["init", "agent", "--out", str(tmp_path / "agent.toml")]) == 0
    finally:
        os.umask(before)
    assert (tmp_path / "agent.toml").stat().st_mode & 0o777 == 0o644


@pytest.fixture
def mosquitto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's Mosquitto with an operator's file; systemctl does nothing."""
    config = tmp_path / "mosquitto" / "mosquitto.conf"
    config.parent.mkdir()
    config.write_text("listener 1883\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    (programs / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(system_service, "CONFIG", config)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return config


def test_the_machines_mosquitto_gets_the_files(mosquitto: Path, tmp_path: Path) -> None:
    """The operator's own file is kept, also when the command runs twice."""
    command = ["init", "broker", "--devices", "gate-6", "--service"]
    assert main([*command, "--out", str(tmp_path / "broker")]) == 0
    made = (tmp_path / "broker" / "mosquitto.conf").read_text()
    assert main([*command, "--port", "1884", "--out", str(tmp_path / "broker")]) == 0
    assert "listener 1884" in mosquitto.read_text() != made
    kept = mosquitto.with_name("mosquitto.conf.before-fededge")
    assert kept.read_text() == "listener 1883\n"
    assert (tmp_path / "asked").read_text().splitlines()[:2] == [
        "enable mosquitto",
        "restart mosquitto",
    ]


def test_a_machine_without_mosquitto_is_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system_service, "CONFIG", tmp_path / "none" / "mosquitto.conf")
    out = tmp_path / "broker"
    said = complaint(["broker", "--devices", "a", "--service", "--out", str(out)], capsys)
    assert "install Mosquitto" in said
    assert not out.exists()
