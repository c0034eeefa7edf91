"""The files of a closed broker: who can read them, and that an operator's changes stay."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fededge.broker.file_owner import ACCOUNT
from fededge.broker.mosquitto import FleetSize
from fededge.cli import main
from tests.mosquitto import free_port, running


def made(folder: Path, *more: str) -> int:
    return main(["init", "broker", "--out", str(folder), "--federation", "gates", *more])


def refused(folder: Path, *more: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert made(folder, *more) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_a_broker_can_read_its_files_whoever_starts_it(pki: Path, tmp_path: Path) -> None:
    """Started by root, Mosquitto becomes its own user before it opens them; others get nothing."""
    root, port = os.geteuid() == 0, free_port()
    owner = pwd.getpwnam(ACCOUNT).pw_uid if root else os.geteuid()
    assert made(tmp_path, "--certificates", str(pki), "--devices", "a", "--port", str(port)) == 0
    with running(tmp_path, port) as broker:
        assert f"Uid:\t{owner}\t" in Path(f"/proc/{broker.pid}/status").read_text()
        broker.stop(10.0)
    assert (tmp_path / "data" / "mosquitto.db").stat().st_uid == owner
    secret = [tmp_path / "acl", tmp_path / "passwords", pki / "broker.key", tmp_path / "data"]
    assert [path for path in secret if path.stat().st_mode & 0o077] == []
    assert [path for path in secret if path.stat().st_uid != owner] == []
    ours = [tmp_path, tmp_path / "secrets", tmp_path / "mosquitto.conf", *pki.glob("[!b]*.key")]
    assert [path for path in ours if path.stat().st_uid != os.geteuid()] == []
    if root:
        assert tmp_path.stat().st_mode & 0o777 == 0o750
        reads = f"import os; os.setuid({owner}); os.listdir({str(tmp_path / 'secrets')!r})"
        ended = subprocess.run([sys.executable, "-c", reads], capture_output=True, check=False)
        assert b"PermissionError" in ended.stderr


def test_a_device_that_was_shut_out_stays_out(pki: Path, place: Callable[[str], Path]) -> None:
    folder = place("broker")
    assert made(folder, "--certificates", str(pki)) == 0
    acl = folder / "acl"
    shut = acl.read_text() + "user gate-7\ntopic deny #\n"
    acl.write_text(shut)
    assert made(folder, "--certificates", str(pki), "--fleet", "500") == 0
    assert acl.read_text() == shut
    assert "for 500 devices" in (folder / "mosquitto.conf").read_text()


def test_an_access_list_of_other_rules_is_not_overwritten(tmp_path: Path) -> None:
    assert made(tmp_path, "--devices", "a") == 0
    before = (tmp_path / "acl").read_text()
    assert made(tmp_path, "--devices", "a", "--federation", "other") == 0
    after = (tmp_path / "acl").read_text()
    assert after.startswith(before)
    assert "user coordinator" in after[len(before) :]


def test_a_password_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    assert made(tmp_path, "--devices", "gate-6", "gate-7") == 0
    passwords = tmp_path / "passwords"
    kept = [line for line in passwords.read_text().splitlines(True) if "gate-7" not in line]
    passwords.write_text("".join(kept))
    assert made(tmp_path, "--devices", "gate-6", "gate-7") == 0
    assert passwords.read_text() == "".join(kept)
    assert made(tmp_path, "--devices", "gate-6", "gate-7", "gate-8") == 0
    assert "gate-7" not in passwords.read_text()
    (tmp_path / "secrets" / "gate-7.password").unlink()
    assert made(tmp_path, "--devices", "gate-7") == 0
    assert passwords.read_text().count("\n") == 4


def test_a_first_run_that_was_cut_short_can_be_repeated(tmp_path: Path) -> None:
    assert made(tmp_path, "--devices", "gate-6") == 0
    for name in ("passwords", "mosquitto.conf"):  # the secrets are written before them
        (tmp_path / name).unlink()
    secret = (tmp_path / "secrets" / "gate-6.password").read_text()
    assert made(tmp_path, "--devices", "gate-6") == 0
    assert (tmp_path / "secrets" / "gate-6.password").read_text() == secret


def test_the_memory_grows_with_the_federation() -> None:
    small = FleetSize(devices=10, at_once=5, model_bytes=45_000_000, chunk_bytes=1 << 18)
    assert small.queued >= 5 * 45_000_000
    assert small.memory >= small.queued + 2 * 45_000_000 + 10 * (2 << 20)
    for more in (
        FleetSize(20, 5, 45_000_000, 1 << 18),
        FleetSize(10, 6, 45_000_000, 1 << 18),
        FleetSize(10, 5, 90_000_000, 1 << 18),
        FleetSize(10, 5, 45_000_000, 1 << 24),
    ):
        assert more.memory > small.memory


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--fleet", "0"], "--fleet 0: must be 1 to 1000000"),
        (["--fleet", "5", "--at-once", "6"], "--at-once 6: must be 1 to 5"),
        (["--model-bytes", "-1"], "--model-bytes -1: must be 1 to"),
        (["--chunk-bytes", "100"], "--chunk-bytes 100: must be 1024 to 16777216"),
    ],
)
def test_invalid_sizes_are_refused(
    tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(tmp_path, "--devices", "a", *flags, capsys=capsys)
