"""TLS on a real Mosquitto: what goes wrong is one sentence that says what to do."""

from __future__ import annotations

import queue
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fededge.broker.local import Broker
from fededge.cli import main
from fededge.config import BrokerConfig
from fededge.credentials.certificates import add_certificates
from fededge.errors import TransportError
from fededge.transport.session import Lost, Session
from tests.mosquitto import free_port, running

HOST = "127.0.0.1"


def start(folder: Path, pki: Path, port: int) -> None:
    arguments = ["init", "broker", "--out", str(folder), "--certificates", str(pki)]
    assert main([*arguments, "--port", str(port)]) == 0


@pytest.fixture(scope="module")
def port(pki: Path, place: Callable[[str], Path]) -> Iterator[int]:
    """A broker that asks for certificates."""
    folder, number = place("broker"), free_port()
    start(folder, pki, number)
    with running(folder, number):
        yield number


def agent(folder: Path, port: int, **broker: Any) -> list[str]:
    lines = ['federation = "lab"', 'device = "gate-6"', 'state = "state"']
    lines += ["[data]", 'source = "embedded"', "[broker]"]
    values = {"host": HOST, "port": port, "wait": 0.5, "tls": True, **broker}
    for key, value in values.items():
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
        lines.append(f"{key} = {shown}")
    path = folder / "agent.toml"
    path.write_text("\n".join(lines))
    return ["agent", "--config", str(path)]


def files(pki: Path, name: str = "gate-6", ca: Path | None = None) -> dict[str, Any]:
    own = {"certificate": str(pki / f"{name}.crt"), "key": str(pki / f"{name}.key")}
    return {"ca": str((ca or pki) / "ca.crt"), **own}


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command complains with."""
    capsys.readouterr()
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(lines) == 1, lines
    return lines[0]


def connect(broker: BrokerConfig) -> Session:
    session = Session(broker, "test", queue.SimpleQueue())
    session.start()
    return session


def test_the_right_certificates_connect(port: int, pki: Path) -> None:
    session = connect(BrokerConfig(host=HOST, port=port, tls=True, **files(pki)))
    assert session.address == f"mqtts://{HOST}:{port}"
    session.stop()


# Certificate files


@pytest.mark.parametrize("key", ["ca", "certificate", "key"])
def test_a_file_that_is_missing_unreadable_or_something_else(
    tmp_path: Path, pki: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    absent, text = tmp_path / "absent", tmp_path / "text"
    text.write_text("hello")
    text.chmod(0o600)
    for path, said in (
        (absent, f"broker.{key}: there is no file '{absent}'"),
        (tmp_path, f"broker.{key}: '{tmp_path}' cannot be read (Is a directory)"),
        (text, f"broker.{key}: '{text}' holds no "),
    ):
        arguments = agent(tmp_path, 1, **(files(pki) | {key: str(path)}))
        assert said in complaint(arguments, capsys)


def test_a_key_of_another_certificate(
    tmp_path: Path, pki: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = files(pki) | {"key": str(pki / "gate-7.key")}
    said = complaint(agent(tmp_path, 1, **given), capsys)
    assert f"'{pki / 'gate-7.key'}' is not the key of the certificate" in said


def test_a_key_that_everybody_can_read(
    tmp_path: Path, pki: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "open.key"
    key.write_bytes((pki / "gate-6.key").read_bytes())
    key.chmod(0o644)
    said = complaint(agent(tmp_path, 1, **(files(pki) | {"key": str(key)})), capsys)
    assert f"broker.key: every user can read '{key}'; fix: chmod 600 {key}" in said


def test_an_encrypted_key_asks_nobody_for_its_password(
    tmp_path: Path, pki: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-aes256", "-passout", "pass:abcd", "-in", f"{pki}/gate-6.key"]
    subprocess.run([*command, "-out", str(key)], check=True)
    key.chmod(0o600)
    said = complaint(agent(tmp_path, 1, **(files(pki) | {"key": str(key)})), capsys)
    assert "is encrypted, and a service cannot type its password" in said


def test_settings_that_do_not_go_together(
    tmp_path: Path, pki: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(agent(tmp_path, 1, tls=False, ca=str(pki / "ca.crt")), capsys)
    assert "broker.ca is set, but broker.tls is not true" in said
    said = complaint(agent(tmp_path, 1, certificate=str(pki / "gate-6.crt")), capsys)
    assert "broker.certificate and broker.key belong together" in said


# The broker's certificate


def test_a_broker_of_another_ca(
    tmp_path: Path, port: int, pki: Path, strangers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(agent(tmp_path, port, **files(pki, ca=strangers)), capsys)
    assert f"mqtts://{HOST}:{port}: the broker's certificate is refused" in said
    assert f"was not signed by the CA in '{strangers / 'ca.crt'}'; correct [broker] ca" in said


def test_a_ca_that_this_system_does_not_know(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "not signed by a CA that this system trusts" in complaint(agent(tmp_path, port), capsys)


@pytest.mark.parametrize(
    ("host", "days", "said"),
    [
        ("other.example", 10, f"it is not for '{HOST}'; correct [broker] host"),
        (HOST, 0, "it has expired by this machine's clock; renew it, or set the clock"),
    ],
)
def test_a_broker_with_a_certificate_that_will_not_do(
    tmp_path: Path, host: str, days: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    add_certificates(tmp_path / "pki", host, ["gate-6"], days)
    start(tmp_path, tmp_path / "pki", port)
    with running(tmp_path, port):
        assert said in complaint(agent(tmp_path, port, **files(tmp_path / "pki")), capsys)


def test_a_broker_without_tls(
    tmp_path: Path, pki: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Broker(tmp_path / "broker", kind="mosquitto") as plain:
        said = complaint(agent(tmp_path, plain.port, **files(pki)), capsys)
    assert f"mqtts://{HOST}:{plain.port}: the server does not speak TLS" in said
    assert "correct [broker] port (usually 8883), or set tls = false" in said


def test_a_broker_that_wants_tls(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(agent(tmp_path, port, tls=False), capsys)
    assert f"mqtt://{HOST}:{port}: the broker speaks TLS there; set [broker] tls = true" in said


def test_no_broker_listens(tmp_path: Path, pki: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number = free_port()
    said = complaint(agent(tmp_path, number, **files(pki)), capsys)
    assert f"mqtts://{HOST}:{number}: no broker answers (connection refused)" in said


# The client's certificate


def test_no_certificate(
    tmp_path: Path, port: int, pki: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(agent(tmp_path, port, ca=str(pki / "ca.crt")), capsys)
    assert "the broker refuses our certificate: it requires one, and [broker]" in said


def test_a_certificate_of_another_ca(
    tmp_path: Path, port: int, pki: Path, strangers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same name, signed by somebody else: not the device."""
    said = complaint(agent(tmp_path, port, **files(strangers, ca=pki)), capsys)
    assert (
        "the broker refuses our certificate: the broker does not trust the CA that signed it"
        in said
    )


def test_a_certificate_that_has_expired(
    tmp_path: Path, pki: Path, capsys: pytest.CaptureFixture[str], port: int
) -> None:
    old = tmp_path / "pki"
    old.mkdir()
    for name in ("ca.crt", "ca.key"):
        (old / name).write_bytes((pki / name).read_bytes())
    add_certificates(old, HOST, ["gate-6"], days=0)
    said = complaint(agent(tmp_path, port, **files(old)), capsys)
    assert "the broker refuses our certificate: it has expired; get a new one" in said


def test_the_brokers_own_certificate_is_not_a_clients(
    tmp_path: Path, port: int, pki: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(agent(tmp_path, port, **files(pki, "broker")), capsys)
    assert "the broker refuses our certificate: it is not a client certificate" in said


def test_a_device_cannot_pose_as_the_broker(
    tmp_path: Path, pki: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its certificate is signed by the same CA, but it is a client's."""
    false = tmp_path / "false"
    false.mkdir()
    for name, source in (("ca.crt", "ca.crt"), ("broker.crt", "gate-7.crt"),
                         ("broker.key", "gate-7.key")):  # fmt: skip
        (false / name).write_bytes((pki / source).read_bytes())
    (false / "broker.key").chmod(0o600)
    number = free_port()
    start(tmp_path, false, number)
    with running(tmp_path, number):
        said = complaint(agent(tmp_path, number, **files(pki)), capsys)
    assert "the broker's certificate is refused" in said


def test_a_certificate_that_is_refused_later_is_named_while_we_try_again(
    place: Callable[[str], Path], pki: Path, strangers: Path
) -> None:
    """The broker comes back with another CA: the owner hears why it stays away."""
    number, before, after = free_port(), place("before"), place("after")
    start(before, pki, number)
    with running(before, number):
        session = connect(BrokerConfig(host=HOST, port=number, tls=True, **files(pki)))
    start(after, strangers, number)
    with running(after, number):
        said: list[str] = []
        while not any("certificate is refused" in reason for reason in said):
            event = session.inbox.get(timeout=30)
            if isinstance(event, Lost):
                said.append(event.reason)
        session.stop()


def test_a_stranger_with_a_stolen_name_learns_nothing(
    port: int, pki: Path, strangers: Path
) -> None:
    broker = BrokerConfig(host=HOST, port=port, tls=True, wait=0, **files(strangers, ca=pki))
    with pytest.raises(TransportError, match="refuses our certificate"):
        connect(broker)
