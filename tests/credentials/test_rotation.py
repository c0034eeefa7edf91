"""Rotation: the new is made while the old is valid, and every step can be run again."""

from __future__ import annotations

import datetime
import os
import subprocess
from pathlib import Path

import pytest
from cryptography import x509

from fededge.broker.mosquitto import password_matches
from fededge.cli import main
from fededge.credentials.signing_keys import read_signing_key, read_trusted_keys


def rotate(*arguments: object) -> None:
    assert main(["rotate", *map(str, arguments)]) == 0


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["rotate", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


# Certificates


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """One certificate expires soon."""
    folder = tmp_path / "pki"
    make = ["init", "certificates", "--out", str(folder), "--broker", "10.0.0.2"]
    assert main([*make, "--devices", "gate-6"]) == 0
    assert main([*make, "--devices", "gate-7", "--days", "20"]) == 0
    return folder


def left(path: Path) -> int:
    found = x509.load_pem_x509_certificate(path.read_bytes())
    return (found.not_valid_after_utc - datetime.datetime.now(datetime.timezone.utc)).days


def verified(folder: Path, name: str, purpose: str = "sslclient") -> None:
    """OpenSSL takes the certificate for this CA's, and the key for that of the certificate."""
    crt, ca = str(folder / f"{name}.crt"), str(folder / "ca.crt")
    verify = ["openssl", "verify", "-purpose", purpose, "-CAfile", ca, crt]
    subprocess.run(verify, check=True, capture_output=True)
    ways = (
        ["x509", "-in", crt, "-noout", "-pubkey"],
        ["pkey", "-in", str(folder / f"{name}.key"), "-pubout"],
    )
    keys = [subprocess.run(["openssl", *w], check=True, capture_output=True).stdout for w in ways]
    assert keys[0] == keys[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_new_key_belongs_to_the_owner_of_the_old_one(pki: Path) -> None:
    """Mosquitto owns the broker's key, and starts with no other."""
    os.chown(pki / "broker.key", 12345, 12346)
    rotate("certificates", "--out", pki, "--devices", "broker")
    there = (pki / "broker.key").stat()
    assert (there.st_uid, there.st_gid, there.st_mode & 0o777) == (12345, 12346, 0o600)


def test_only_what_expires_is_renewed(pki: Path) -> None:
    before = {path: path.read_bytes() for path in pki.iterdir()}
    rotate("certificates", "--out", pki, "--expiring", 60)
    changed = {path.name for path in pki.iterdir() if path.read_bytes() != before[path]}
    assert changed == {"gate-7.crt", "gate-7.key"}
    assert left(pki / "gate-7.crt") > 1800
    verified(pki, "gate-7")


def test_the_broker_keeps_its_name(pki: Path) -> None:
    rotate("certificates", "--out", pki, "--devices", "broker", "--days", 90)
    verified(pki, "broker", "sslserver")
    shown = ["openssl", "x509", "-in", str(pki / "broker.crt"), "-noout", "-checkip", "10.0.0.2"]
    said = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
    assert "does match" in said


def test_a_box_with_its_own_key_keeps_it(pki: Path) -> None:
    """The CA has no key of it, and its certificate is renewed for the same one."""
    (pki / "gate-7.key").rename(pki.parent / "gate-7.key")
    rotate("certificates", "--out", pki, "--devices", "gate-7")
    assert not (pki / "gate-7.key").exists()
    (pki.parent / "gate-7.key").rename(pki / "gate-7.key")
    verified(pki, "gate-7")
    assert left(pki / "gate-7.crt") > 1800


def test_mistakes_with_certificates_are_one_sentence(
    pki: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--expiring" in refused(capsys, "certificates", "--out", pki)
    assert "no file" in refused(capsys, "certificates", "--out", pki, "--devices", "gate-9")
    assert "1 to 36500" in refused(capsys, "certificates", "--out", pki, "--days", 0)


# Signing keys


def test_agents_trust_both_keys_between_the_two_steps(tmp_path: Path) -> None:
    assert main(["init", "key", "--out", str(tmp_path)]) == 0
    private, public = tmp_path / "signing.key", tmp_path / "signing.pub"
    old = read_signing_key(private).public_key()
    for _ in range(2):  # run twice, it makes no third key
        rotate("key", "--out", tmp_path)
        assert read_signing_key(private).public_key() == old
        new = next(key for key in read_trusted_keys(public) if key != old)
        assert read_trusted_keys(public) == (old, new)
    rotate("key", "--out", tmp_path, "--finish")
    assert read_signing_key(private).public_key() == new
    assert read_trusted_keys(public) == (new,)


def test_an_interrupted_end_of_a_key_rotation_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "key", "--out", str(tmp_path)]) == 0
    assert "no next key" in refused(capsys, "key", "--out", tmp_path, "--finish")
    rotate("key", "--out", tmp_path)
    (tmp_path / "next.key").rename(tmp_path / "signing.key")  # and no further
    rotate("key", "--out", tmp_path, "--finish")
    new = read_signing_key(tmp_path / "signing.key").public_key()
    assert read_trusted_keys(tmp_path / "signing.pub") == (new,)


# Passwords


def test_a_password_file_holds_both_until_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "broker"
    make = ["init", "broker", "--out", str(folder), "--federation", "gates"]
    assert main([*make, "--devices", "gate-6", "gate-7"]) == 0
    passwords, secret = folder / "passwords", folder / "secrets" / "gate-7.password"
    before, old = passwords.read_text(), secret.read_text().strip()
    step = ("password", "--out", folder, "--devices", "gate-7")
    assert "no new password" in refused(capsys, *step, "--finish")
    rotate(*step)
    rotate(*step)
    new, *others = secret.read_text().split()
    assert others == [old] != [new]
    assert passwords.read_text() == before
    rotate(*step, "--finish")
    assert secret.read_text().split() == [new]
    lines = dict(line.split(":") for line in passwords.read_text().splitlines())
    assert password_matches(new, lines["gate-7"])
    assert not password_matches(old, lines["gate-7"])
    assert {**lines, "gate-7": ""} == {
        **dict(line.split(":") for line in before.splitlines()),
        "gate-7": "",
    }
    assert "no password" in refused(capsys, "password", "--out", folder, "--devices", "gate-9")
