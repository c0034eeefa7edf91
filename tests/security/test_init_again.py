"""`fededge init broker`, run again: existing files and lock-outs stay."""

from __future__ import annotations

import datetime
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fededge.cli import main
from fededge.errors import TransportError
from fededge.transport.session import Session
from fededge.wire.topics import Topics
from tests.mosquitto import free_port, running
from tests.security.test_access import DONE, Party, Site

Place = Callable[[str], Path]


def made(folder: Path, *more: str) -> int:
    return main(["init", "broker", "--out", str(folder), *more])


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its content and the time of its last change."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


@pytest.fixture
def folder(place: Place) -> Path:
    return place("broker")


def revocations(pki: Path, name: str) -> bytes:
    """A revocation list of the fleet's CA with the certificate of one device."""
    ca = x509.load_pem_x509_certificate((pki / "ca.crt").read_bytes())
    key = serialization.load_pem_private_key((pki / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    lost = x509.load_pem_x509_certificate((pki / f"{name}.crt").read_bytes())
    now = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
    entry = x509.RevokedCertificateBuilder().serial_number(lost.serial_number)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ca.subject)
        .last_update(now)
        .next_update(now + datetime.timedelta(days=30))
        .add_revoked_certificate(entry.revocation_date(now).build())
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_revoked_certificate_stays_revoked(pki: Path, folder: Path) -> None:
    """The revocation list is a line that the operator has added to mosquitto.conf."""
    port = free_port()
    flags = ("--federation", "gates", "--certificates", str(pki))
    assert made(folder, *flags, "--port", str(port)) == 0
    listed, conf = folder / "revoked.pem", folder / "mosquitto.conf"
    listed.write_bytes(revocations(pki, "gate-6"))
    listed.chmod(0o644)
    lines = conf.read_text().splitlines()
    lines.insert(1, f"crlfile {listed}")
    conf.write_text("\n".join(lines) + "\n")
    assert made(folder, *flags) == 0
    site = Site(folder, port, pki, passwords=False)
    with running(folder, port):
        with pytest.raises(TransportError, match="revoked"):
            Session(site.user("gate-6"), "lost", queue.SimpleQueue()).start()
        honest = Session(site.user("gate-7"), "honest", queue.SimpleQueue())
        honest.start()
        honest.stop()


def test_a_second_run_changes_no_byte_and_says_so(
    pki: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--federation", "gates", "--certificates", str(pki), "--devices", "gate-6")
    assert made(folder, *flags, "--port", "9001", "--fleet", "500") == 0
    before = files(folder)
    capsys.readouterr()
    assert made(folder, *flags) == 0
    assert files(folder) == before
    said = capsys.readouterr().out.splitlines()
    for line in (
        "acl: kept the rules of federation 'gates'",
        "passwords: kept coordinator",
        "passwords: kept gate-6",
        "mosquitto.conf: kept port 9001",
    ):
        assert line in said
    assert [line for line in said if "added" in line or "made" in line] == []


def test_a_port_is_added_beside_the_one_that_is_there(
    pki: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """First plain with passwords, then TLS too: boxes that are out there go on."""
    plain, secured = free_port(), free_port()
    gates = ("--federation", "gates", "--devices", "gate-6")
    assert made(folder, *gates, "--port", str(plain)) == 0
    capsys.readouterr()
    assert made(folder, *gates, "--port", str(secured), "--certificates", str(pki)) == 0
    said = capsys.readouterr().out
    assert f"mosquitto.conf: kept port {plain}" in said
    assert f"mosquitto.conf: added port {secured}" in said
    with running(folder, plain):
        for port, certificates in ((plain, None), (secured, pki)):
            party = Party(Site(folder, port, certificates, passwords=True).user("gate-6"))
            party.session.stop()


def shut_out_by_acl(folder: Path) -> None:
    acl = folder / "acl"
    acl.write_text(acl.read_text() + "user gate-7\ntopic deny #\n")


def shut_out_by_line(folder: Path) -> None:
    path = folder / "passwords"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("gate-7")))


def shut_out_by_comment(folder: Path) -> None:
    path = folder / "passwords"
    path.write_text(path.read_text().replace("gate-7:", "# gate-7:"))
    (folder / "secrets" / "gate-7.password").unlink()


@pytest.mark.parametrize(
    ("shut_out", "why"),
    [
        (shut_out_by_acl, "acl denies it"),
        (shut_out_by_line, "its line was removed; for a new password: rm "),
        (shut_out_by_comment, "its line is commented out"),
    ],
)
def test_a_locked_out_device_stays_out_while_others_are_added(
    folder: Path,
    shut_out: Callable[[Path], None],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert made(folder, "--federation", "gates", "--devices", "gate-6", "gate-7") == 0
    shut_out(folder)
    acl, before = (folder / "acl").read_text(), (folder / "passwords").read_text()
    capsys.readouterr()
    devices = ("--devices", "gate-6", "gate-7", "gate-8")
    assert made(folder, "--federation", "gates", *devices) == 0
    said = capsys.readouterr().out
    assert f"passwords: gate-7 stays locked out: {why}" in said
    assert (folder / "acl").read_text() == acl
    after = (folder / "passwords").read_text()
    assert after.startswith(before)
    assert [line.partition(":")[0] for line in after[len(before) :].splitlines()] == ["gate-8"]


def test_a_lost_list_of_passwords_lets_nobody_back_in(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It told who was locked out: making it from the secrets would let them in again."""
    gates = ("--federation", "gates", "--devices", "gate-6", "gate-7")
    assert made(folder, *gates) == 0
    shut_out_by_line(folder)
    (folder / "passwords").unlink()
    capsys.readouterr()
    assert made(folder, *gates) == 2
    assert "nothing else tells who was locked out" in capsys.readouterr().err
    assert not (folder / "passwords").exists()


def test_a_rule_that_was_commented_out_stays_out(folder: Path) -> None:
    gates = ("--federation", "gates", "--devices", "gate-6")
    assert made(folder, *gates) == 0
    acl = folder / "acl"
    rule = "pattern read fededge/v1/gates/coordinator/status"
    text = acl.read_text().replace(rule, f"# {rule}")
    acl.write_text(text)
    assert made(folder, *gates) == 0
    assert acl.read_text() == text


@pytest.fixture
def two(folder: Path) -> Iterator[Site]:
    port = free_port()
    assert made(folder, "--federation", "gates", "--devices", "gate-7", "--port", str(port)) == 0
    shut_out_by_acl(folder)
    assert made(folder, "--federation", "doors", "--devices", "door-1") == 0
    with running(folder, port):
        yield Site(folder, port, None, passwords=True)


def test_two_federations_on_one_closed_broker(two: Site) -> None:
    """Both are served, a device speaks for itself alone, and the lost box hears nothing."""
    coordinator, door = Party(two.user("coordinator")), Party(two.user("door-1"))
    lost = Party(two.user("gate-7"))
    for name in ("gates", "doors"):
        topics = Topics(name)
        lost.says(topics.device("gate-7", "report"), b"let me in")
        coordinator.says(topics.state, name.encode())
        coordinator.says(topics.device("door-1", "task"), DONE)
        assert door.hears() == {(topics.state, name.encode())}
        door.says(topics.device("other", "report"), b"forged")
        door.says(topics.device("door-1", "report"), name.encode())
        door.says(topics.device("door-1", "report"), DONE)
        heard = coordinator.hears()
        assert (topics.device("door-1", "report"), name.encode()) in heard
        assert {payload for _, payload in heard} <= {name.encode(), DONE}
    coordinator.says(f"{Topics('gates').coordinator}/claim", b"last")
    coordinator.hears(b"last")
    assert [event for event in drained(lost) if hasattr(event, "payload")] == []
    for party in (coordinator, door, lost):
        party.session.stop()


def drained(party: Party) -> list[object]:
    events: list[object] = []
    while not party.session.inbox.empty():
        events.append(party.session.inbox.get())
    return events


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--devices", "gate-6"), "asks for certificates, so a password opens nothing there"),
        (("--certificates", "OTHER"), "has its certificate from"),
    ],
)
def test_a_run_that_would_change_how_boxes_log_in_is_refused(
    pki: Path,
    strangers: Path,
    folder: Path,
    flags: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert made(folder, "--federation", "gates", "--certificates", str(pki)) == 0
    before = files(folder)
    capsys.readouterr()
    given = [str(strangers) if flag == "OTHER" else flag for flag in flags]
    assert made(folder, "--federation", "gates", *given) == 2
    assert said in capsys.readouterr().err
    assert files(folder) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's Mosquitto becomes another user")
def test_a_strict_umask_keeps_the_broker_out_of_nothing(place: Place) -> None:
    """An administrator's umask of 077 closes new folders and certificates to every other user."""
    ground, port = place("strict"), free_port()
    pki, broker = ground / "pki", ground / "broker"
    program = "import os, sys; os.umask(0o077); from fededge.cli import main; sys.exit(main())"
    for words in (
        ["certificates", "--out", str(pki), "--broker", "127.0.0.1"],
        ["broker", "--out", str(broker), "--certificates", str(pki), "--port", str(port)],
    ):
        ended = subprocess.run([sys.executable, "-c", program, "init", *words], check=False)
        assert ended.returncode == 0
    site = Site(broker, port, pki, passwords=False)
    with running(broker, port):
        session = Session(site.user("coordinator"), "c", queue.SimpleQueue())
        session.start()
        session.stop()
    assert (pki / "ca.key").stat().st_mode & 0o777 == 0o600


def test_a_broker_that_cannot_enter_a_folder_is_told(
    pki: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.chmod(0o700)
    inner = folder / "broker"
    assert made(inner, "--certificates", str(pki)) == 0
    said = capsys.readouterr().out
    if os.geteuid() == 0:
        assert f"{folder}: the user mosquitto cannot enter this folder" in said
    else:
        assert "run this command again with sudo" in said
