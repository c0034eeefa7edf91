"""A box and a fleet's broker in good health, in which the tests plant one fault each."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from fededge.cli import main
from fededge.cli.operation import doctor as command
from fededge.config import AgentConfig, BrokerConfig, CoordinatorConfig, load_either
from fededge.credentials import certificates as made
from fededge.doctor import Box, Diagnosis, Subject, examine
from fededge.model_spec import ModelSpec
from fededge.transport.probing import GRANTED, Probing
from fededge.wire.messages import Manifest, Presence, State, encode
from fededge.wire.topics import Topics
from tests.mosquitto import enterable, free_port, running
from tests.states import made_state

DEVICES = ("gate-4", "gate-5", "gate-6", "gate-7", "gate-8", "gate-9")
HOST = "127.0.0.1"
LISTENERS = ("expired", "future", "soon")
INSTANCE = "0123456789abcdef" * 2

ACL = """
user gate-8
topic deny fededge/v1/gates/device/gate-8/report
user gate-5
topic readwrite #
"""


def state(federation: str = "gates", **changes: Any) -> State:
    fields: dict[str, Any] = {
        "federation": federation,
        "round": 3,
        "rounds": 10,
        "version": "000003-0123456789abcdef",
        "model": ModelSpec("lenet", ("car", "truck"), (1, 28, 28), (0.5,), (0.5,)),
        "manifest": Manifest(1, 256 * 1024, 1000, 64 * "0"),
        "issued": int(1000 * time.time()),
    }
    return made_state(**{**fields, **changes})


@dataclass
class Site:
    """The fleet's broker: ports without TLS, with it, with client certificates, and faulty ones."""

    folder: Path
    pki: Path
    strangers: Path
    ports: Mapping[str, int]
    open_port: int

    def publish(self, topic: str, payload: bytes, user: str = "coordinator") -> None:
        """Retain a message at the closed broker."""
        password = (self.folder / "secrets" / f"{user}.password").read_text().strip()
        port = self.ports["plain"]
        self._retain(
            BrokerConfig(host=HOST, port=port, username=user, password=password), topic, payload
        )

    def publish_openly(self, topic: str, payload: bytes) -> None:
        """Retain a message at the open broker."""
        self._retain(BrokerConfig(host=HOST, port=self.open_port), topic, payload)

    def _retain(self, broker: BrokerConfig, topic: str, payload: bytes) -> None:
        with Probing(broker, 5.0) as line:
            assert 0 <= line.publish(topic, payload, retain=True) < GRANTED


def announce(publish: Any, federation: str, online: bool = True, **changes: Any) -> None:
    """The retained messages of a federation that is under way."""
    topics = Topics(federation)
    publish(topics.state, encode(state(federation, **changes)))
    publish(f"{topics.coordinator}/status", encode(Presence(INSTANCE, online, federation)))


@contextlib.contextmanager
def fleet() -> Iterator[Site]:
    """One Mosquitto for all users of the fleet, and an open one."""
    with enterable() as ground:
        pki, strangers, broker = (ground / name for name in ("pki", "strangers", "broker"))
        for folder in (pki, strangers):
            words = ["init", "certificates", "--out", str(folder), "--broker", HOST]
            assert main([*words, "--devices", *DEVICES]) == 0
        ports = {name: free_port() for name in ("plain", "tls", "mutual", *LISTENERS)}
        _provision(broker, pki, ports)
        with running(broker, ports["plain"]), open_broker(ground / "open") as port:
            site = Site(broker, pki, strangers, ports, port)
            announce(site.publish, "gates")
            yield site


def _provision(broker: Path, pki: Path, ports: Mapping[str, int]) -> None:
    words = ["init", "broker", "--out", str(broker), "--federation", "gates"]
    devices, tls = ["--devices", *DEVICES], ["--certificates", str(pki)]
    assert main([*words, *devices, "--port", str(ports["plain"])]) == 0
    quiet = ["init", "broker", "--out", str(broker), "--federation", "quiet"]
    assert main(quiet) == 0  # has a coordinator that was never started
    assert main([*words, *devices, *tls, "--port", str(ports["tls"])]) == 0
    assert main([*words, *tls, "--port", str(ports["mutual"])]) == 0
    acl, conf = broker / "acl", broker / "mosquitto.conf"
    acl.write_text(acl.read_text() + ACL)
    days = {"expired": -0.5, "future": 400.0, "soon": 5.0}
    for name in LISTENERS:
        certify(pki, name, days[name], HOST, -1.0 if name == "future" else 1.0)
        lines = [f"listener {ports[name]}", f"certfile {pki}/{name}.crt"]
        (pki / f"{name}.key").chmod(0o644)
        conf.write_text("\n".join([conf.read_text(), *lines, f"keyfile {pki}/{name}.key", ""]))


def certify(pki: Path, name: str, days: float, host: str = "", backdated: float = 1.0) -> None:
    """Make a certificate of the fleet's CA that ends in `days` and began `backdated` days ago."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "BACKDATED", datetime.timedelta(days=backdated))
        pair = made._issued(made._read(pki, made.CA), name, days, host)  # type: ignore[arg-type]
    made._write(pki, name, pair)


@contextlib.contextmanager
def open_broker(folder: Path, *lines: str) -> Iterator[int]:
    """A Mosquitto for everybody, with further lines of configuration."""
    port = free_port()
    folder.mkdir(mode=0o755)
    text = [f"listener {port} {HOST}", "allow_anonymous true", "persistence false", *lines, ""]
    (folder / "mosquitto.conf").write_text("\n".join(text))
    with running(folder, port):
        yield port


@dataclass
class Patient:
    """A healthy agent's configuration; a fault changes it, or what lies around it."""

    site: Site
    folder: Path
    patch: pytest.MonkeyPatch
    stack: contextlib.ExitStack
    values: dict[str, Any] = field(default_factory=dict)
    deep: bool = False
    box: Box = field(default_factory=lambda: Box(clock=lambda: 0.0, timeout=2.0))

    def __post_init__(self) -> None:
        self.values = {
            "federation": "gates",
            "state": "state",
            "device": "gate-7",
            "broker": self.login("gate-7"),
            "data": {"source": "folder", "root": "data"},
        }
        for label in ("car", "truck"):
            (self.data / label).mkdir(parents=True)
            for number in range(6):
                picture = Image.new("L", (28, 28), 20 * number)
                picture.save(self.data / label / f"{number}.png")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def broker(self) -> dict[str, Any]:
        found: dict[str, Any] = self.values["broker"]
        return found

    def login(self, user: str) -> dict[str, Any]:
        """A [broker] section with this user's password."""
        secret = self.site.folder / "secrets" / f"{user}.password"
        port = self.site.ports["plain"]
        return {"host": HOST, "port": port, "username": user, "password_file": str(secret)}

    def use_tls(self, port: str = "tls", **changes: Any) -> None:
        tls = {"port": self.site.ports[port], "tls": True, "ca": str(self.site.pki / "ca.crt")}
        self.broker.update({**tls, **changes})

    def use_certificate(self, pki: Path, name: str) -> None:
        """Log in at the port that asks for certificates."""
        files = {"certificate": str(pki / f"{name}.crt"), "key": str(pki / f"{name}.key")}
        self.values["broker"] = {"host": HOST, **files}
        self.use_tls("mutual")

    def use_open(self, port: int | None = None, federation: str = "gates", **changes: Any) -> None:
        """Move to an open broker, where this federation is under way."""
        self.values["broker"] = {"host": HOST, "port": port or self.site.open_port}
        self.values["federation"] = federation
        if port is None:
            announce(self.site.publish_openly, federation, **changes)

    def become_coordinator(self) -> None:
        del self.values["device"]
        self.values |= {"broker": self.login("coordinator"), "data": {"source": "none"}}
        self.values["federation"] = "quiet"
        self.values["model"] = {"labels": ["car", "truck"], "shape": [1, 28, 28]}

    def write(self) -> Path:
        path = self.folder / "side.toml"
        path.write_text(toml(self.values))
        return path

    def examined(self) -> list[Diagnosis]:
        path = self.write()
        config = load_either(path)
        assert isinstance(config, AgentConfig | CoordinatorConfig)
        subject = Subject(path, config, self.deep, self.box)
        return [*examine(subject), *command._slow(path, config.hardware, command.PROBE)]


def toml(values: Mapping[str, Any]) -> str:
    plain = [f"{k} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, dict)]
    tables = [f"[{k}]\n{toml(v)}" for k, v in values.items() if isinstance(v, dict)]
    return "\n".join([*plain, *tables, ""])


def renamed(box: Box, **changes: Any) -> Box:
    """The box with other answers."""
    fields = {name: getattr(box, name) for name in ("wall", "clock", "free_bytes", "timeout")}
    return Box(**{**fields, **changes})


def damaged(path: Path) -> None:
    """Change a byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def unsigned(message: State) -> bytes:
    return encode(msgspec.structs.replace(message, signature=""))
