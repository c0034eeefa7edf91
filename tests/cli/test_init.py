"""`fededge init`: what it writes is kept when it runs again, and mistakes are one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fededge.broker.mosquitto import password_matches
from fededge.cli import main
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
