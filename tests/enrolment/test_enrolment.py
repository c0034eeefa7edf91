"""A box asks, an operator accepts by fingerprint, the box takes the answer; all else is refused."""

from __future__ import annotations

import base64
import datetime
import json
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from fededge.cli import main
from fededge.config import AgentConfig, load
from fededge.enrolment.request import make_request, read_request, same_fingerprint
from fededge.errors import ConfigError


class Desk:
    """An operator's machine with a CA, and a box, each in its folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.pki, self.keys, self.box = folder / "pki", folder / "keys", folder / "box"
        self.request, self.answer = folder / "gate-7.request", folder / "gate-7.answer"

    def make(self) -> Desk:
        assert main(["init", "certificates", "--out", str(self.pki), "--broker", "10.0.0.2"]) == 0
        assert main(["init", "key", "--out", str(self.keys)]) == 0
        return self

    def run(self, *arguments: object) -> tuple[int, str]:
        """The exit code, and all that was said."""
        self.capsys.readouterr()
        code = main([str(each) for each in arguments])
        said = self.capsys.readouterr()
        return code, said.out + said.err

    def ask(self, device: str = "gate-7", box: str = "box") -> str:
        """Write a request; its fingerprint, as the box shows it."""
        where = ("--out", self.folder / box, "--request", self.request)
        code, said = self.run("enroll", "--device", device, *where)
        assert code == 0, said
        return next(li.split()[1] for li in said.splitlines() if li.startswith("fingerprint"))

    def accept(self, fingerprint: str, *more: object, device: str = "gate-7") -> tuple[int, str]:
        files = ("--request", self.request, "--answer", self.answer, "--certificates", self.pki)
        site = ("--federation", "gates", "--broker", "10.0.0.2")
        key = ("--trusted-key", self.keys / "signing.pub", "--fingerprint", fingerprint)
        return self.run("devices", "accept", device, *files, *site, *key, *more)

    def take(self, *more: object) -> tuple[int, str]:
        where = ("--device", "gate-7", "--out", self.box, "--answer", self.answer)
        return self.run("enroll", *where, *more)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys).make()


def one_sentence(result: tuple[int, str]) -> str:
    code, said = result
    assert code in (2, 3, 4), said
    assert said.count("\n") == 1
    return said


def test_a_box_keeps_its_key_and_gets_all_else(desk: Desk) -> None:
    fingerprint = desk.ask()
    assert desk.accept(fingerprint)[0] == 0
    assert desk.take()[0] == 0
    config = load(desk.box / "agent.toml", AgentConfig, {})
    assert (config.federation, config.device, config.broker.host) == ("gates", "gate-7", "10.0.0.2")
    assert (config.broker.port, config.broker.tls) == (8883, True)
    assert config.trusted_key == str(desk.box / "signing.pub")
    key = desk.box / "gate-7.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_text()
    others = [p for p in desk.folder.rglob("*") if p.is_file() and p != key]
    assert others
    assert not any(secret.splitlines()[1] in p.read_text(errors="replace") for p in others)


def test_openssl_agrees_that_the_certificate_is_the_cas_and_for_this_key(desk: Desk) -> None:
    desk.accept(desk.ask())
    desk.take()
    ca, crt, key = (desk.box / name for name in ("ca.crt", "gate-7.crt", "gate-7.key"))
    verify = ["openssl", "verify", "-purpose", "sslclient", "-CAfile", str(ca), str(crt)]
    assert subprocess.run(verify, check=True, capture_output=True, text=True).stdout.strip() == (
        f"{crt}: OK"
    )
    publics = [
        subprocess.run(["openssl", *command], check=True, capture_output=True).stdout
        for command in (
            ["x509", "-in", str(crt), "-pubkey", "-noout"],
            ["pkey", "-in", str(key), "-pubout"],
        )
    ]
    assert publics[0] == publics[1]


def test_the_fingerprint_is_that_of_openssl(desk: Desk) -> None:
    fingerprint = desk.ask()
    key = str(desk.box / "gate-7.key")
    command = f"openssl pkey -in {key} -pubout -outform DER | openssl dgst -sha256"
    said = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True)
    assert said.stdout.split()[-1].startswith(fingerprint.replace("-", ""))


def test_another_fingerprint_signs_nothing(desk: Desk) -> None:
    fingerprint = desk.ask()
    wrong = ("0" if fingerprint[0] != "0" else "1") + fingerprint[1:]
    for typed in (wrong, fingerprint[:-1], fingerprint[:4], ""):
        assert "nothing was signed" in one_sentence(desk.accept(typed))
    assert not (desk.pki / "gate-7.crt").exists()
    assert not desk.answer.exists()
    assert desk.accept(fingerprint.replace("-", " ").upper())[0] == 0


def test_a_fingerprint_must_be_given_where_nobody_can_be_asked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.ask()
    files = ("--request", desk.request, "--answer", desk.answer, "--certificates", desk.pki)
    ask = ("devices", "accept", "gate-7", *files, "--federation", "gates", "--broker", "b")
    code, said = desk.run(*ask)
    assert code == 2
    assert "--fingerprint" in said.splitlines()[-1]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for typed, wanted in (("", 4), ("no", 4), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda _, typed=typed: typed)
        assert (desk.run(*ask)[0] == 0) == (wanted == 0)


def test_a_request_cannot_take_the_place_of_an_enrolled_device(desk: Desk) -> None:
    desk.accept(desk.ask())
    before = (desk.pki / "gate-7.crt").read_bytes()
    thief = desk.ask(box="thief")
    assert "enrolled with another key" in one_sentence(desk.accept(thief))
    assert (desk.pki / "gate-7.crt").read_bytes() == before
    assert desk.accept(thief, "--replace")[0] == 0
    assert (desk.pki / "gate-7.crt").read_bytes() != before


def test_a_device_of_init_certificates_is_enrolled_too(desk: Desk) -> None:
    assert main(["init", "certificates", "--out", str(desk.pki), "--devices", "gate-7"]) == 0
    fingerprint = desk.ask()
    assert "enrolled with another key" in one_sentence(desk.accept(fingerprint))
    assert desk.accept(fingerprint, "--replace")[0] == 0
    assert not (desk.pki / "gate-7.key").exists()  # it is not that of the certificate any more


def test_the_same_key_asks_again_to_renew_its_certificate(desk: Desk) -> None:
    fingerprint = desk.ask()
    desk.accept(fingerprint, "--days", "10")
    desk.take()
    (desk.box / "agent.toml").write_text("# mine\n")
    assert desk.ask() == fingerprint
    assert desk.accept(fingerprint, "--days", "100")[0] == 0
    assert desk.take()[0] == 0
    renewed = x509.load_pem_x509_certificate((desk.box / "gate-7.crt").read_bytes())
    left = renewed.not_valid_after_utc - datetime.datetime.now(datetime.timezone.utc)
    assert left.days >= 98
    assert (desk.box / "agent.toml").read_text() == "# mine\n"


@pytest.mark.parametrize("name", ["coordinator", "broker", "ca", "enrol"])
def test_no_box_can_ask_for_a_name_of_the_fleet(desk: Desk, name: str) -> None:
    where = ("--out", desk.box, "--request", desk.request)
    assert "taken" in one_sentence(desk.run("enroll", "--device", name, *where))
    desk.request.write_bytes(signed_request(name))
    assert "taken" in one_sentence(desk.accept("x", device=name))


def signed_request(
    name: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None, unit: str = ""
) -> bytes:
    """A request as another program may make it."""
    names = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    names += [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    made = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def hostile_requests() -> dict[str, bytes]:
    good = signed_request("gate-7")
    return {
        "no request": b"hello",
        "limit is": good + b" " * 5000,
        "curve P-256": signed_request("gate-7", ec.generate_private_key(ec.SECP384R1())),
        "of the curve": signed_request("gate-7", rsa.generate_private_key(65537, 1024)),
        "nothing else": signed_request("gate-7", unit="admins"),
        "must be 1 to 64": signed_request("../../etc/passwd"),
        "begin with a letter": signed_request("#"),
        "no request of": b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n",
    }


@pytest.mark.parametrize(("why", "data"), hostile_requests().items())
def test_a_hostile_request_is_one_sentence(desk: Desk, why: str, data: bytes) -> None:
    desk.request.write_bytes(data)
    said = one_sentence(desk.accept("x"))
    assert why in said or "cannot be read" in said


def test_a_request_that_was_changed_is_refused(tmp_path: Path) -> None:
    """Every byte of it is in the signature, or makes it unreadable."""
    good = make_request(tmp_path / "gate-7.key", "gate-7")
    der = x509.load_pem_x509_csr(good).public_bytes(serialization.Encoding.DER)
    for position in range(0, len(der), 3):
        changed = bytearray(der)
        changed[position] ^= 1
        mark = b"CERTIFICATE REQUEST-----\n"
        text = b"-----BEGIN " + mark + base64.encodebytes(bytes(changed)) + b"-----END " + mark
        with pytest.raises(ConfigError):
            read_request(text)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"device": "gate-6"}, "this one is 'gate-7'"),
        ({"host": "evil\nhost"}, "no valid name"),
        ({"host": ""}, "no valid name"),
        ({"port": 0}, "no answer"),
        ({"federation": "a/b"}, "federation"),
        ({"certificate": "x"}, "no certificate"),
        ({"more": 1}, "no answer"),
    ],
)
def test_a_hostile_answer_changes_nothing_on_the_box(
    desk: Desk, change: dict[str, object], why: str
) -> None:
    desk.accept(desk.ask())
    desk.answer.write_text(json.dumps({**json.loads(desk.answer.read_text()), **change}))
    assert why in one_sentence(desk.take())
    assert [path.name for path in desk.box.iterdir()] == ["gate-7.key"]


def test_an_answer_of_another_ca_or_for_another_key_is_refused(desk: Desk) -> None:
    fingerprint = desk.ask()
    desk.accept(fingerprint)
    good = json.loads(desk.answer.read_text())
    assert main(["init", "certificates", "--out", str(desk.folder / "evil")]) == 0
    other = (desk.folder / "evil" / "ca.crt").read_text()
    desk.answer.write_text(json.dumps({**good, "ca": other}))
    assert "not of its CA" in one_sentence(desk.take())
    wrong = ("--ca-fingerprint", "0000-0000-0000-0000-0000-0000-0000-0000")
    desk.answer.write_text(json.dumps(good))
    assert "nothing was written" in one_sentence(desk.take(*wrong))
    (desk.box / "gate-7.key").unlink()
    desk.ask()
    assert "another key" in one_sentence(desk.take())
    (desk.box / "ca.crt").write_text(other)
    desk.accept(desk.ask(), "--replace")
    assert "another CA" in one_sentence(desk.take())


@pytest.mark.parametrize("field", ["certificate", "ca"])
def test_a_certificate_with_a_key_of_an_unknown_kind_is_refused(desk: Desk, field: str) -> None:
    desk.accept(desk.ask())
    answer = json.loads(desk.answer.read_text())
    der = x509.load_pem_x509_certificate(answer[field].encode()).public_bytes(
        serialization.Encoding.DER
    )
    curve = bytes.fromhex("06082a8648ce3d030107")  # P-256
    assert curve in der
    text = base64.encodebytes(der.replace(curve, curve[:-1] + b"\x7f")).decode()
    answer[field] = f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"
    desk.answer.write_text(json.dumps(answer))
    assert "answer" in one_sentence(desk.take())
    assert [path.name for path in desk.box.iterdir()] == ["gate-7.key"]


def test_the_operator_names_the_ca_that_the_box_sees(desk: Desk) -> None:
    said = desk.accept(desk.ask())[1]
    shown = said.partition("the CA is ")[2].split()[0]
    assert desk.take("--ca-fingerprint", shown)[0] == 0


def test_fingerprints_are_compared_whole() -> None:
    assert same_fingerprint("AB-cd", "ab-cd")
    assert not same_fingerprint("ab", "ab-cd")
    assert not same_fingerprint("", "ab-cd")
