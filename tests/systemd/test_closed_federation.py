"""The ten commands of docs/closed-federation.md, as they stand there, on machines of their own.

The broker's machine and each box is a container with a real systemd, on a network of their own. The
packages are installed beforehand; all else is typed as the page has it. A third box asks to be
enrolled, and nobody accepts it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fededge._internal.processes import Child
from fededge.data import embedded
from tests.systemd.container import CHECKOUT, Container, obstacle, prepared_root

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = CHECKOUT / "docs" / "closed-federation.md"
BRIDGE = "fededge-test"
BOXES, STRANGER = ("gate-6", "gate-7"), "gate-8"
FINGERPRINT = r"(?:[0-9a-f]{4}-){7}[0-9a-f]{4}"
CONFIG = ("--config", "/etc/fededge/coordinator.toml")

SUDO = '#!/bin/sh\nexec "$@"\n'
SERVICE = """[Match]
Name=host0
[Network]
Address={address}/24
LinkLocalAddressing=no
"""
HOSTS = "127.0.0.1 localhost\n10.77.0.1 broker.example\n"


def commands(kind: str) -> list[str]:
    """The commands of the page in blocks of this kind."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_the_page_has_ten_commands() -> None:
    assert len([*commands("install"), *commands("broker"), *commands("box")]) == 10
    assert re.findall("```(.+)", PAGE.read_text()) == [
        *("install", "broker", "box", "broker", "box", "broker")
    ]


def write_images(folder: Path, classes: range, each: int) -> None:
    """Pictures of shoes and shirts, one folder per class."""
    whole, _ = embedded()
    for label in classes:
        (folder / f"kind-{label}").mkdir(parents=True)
        chosen = (whole.y == label).nonzero().flatten()[:each]
        for number, index in enumerate(chosen.tolist()):
            picture = Image.fromarray(whole.x[index].squeeze().numpy())
            picture.save(folder / f"kind-{label}" / f"{number}.png")


class Machines:
    """A network of machines, the first of which has the broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = self._machine("broker", 1)
        self.boxes = {name: self._machine(name, 2 + i) for i, name in enumerate(BOXES)}
        self.asking: dict[str, Child] = {}

    def _machine(self, name: str, number: int) -> Container:
        network = (f"--network-bridge={BRIDGE}", f"--machine=fe-{name}")
        made = Container(self.folder / name, self.folder / f"{name}.log", network)
        made.copy_from(prepared_root())
        made.write("/usr/bin/sudo", SUDO)
        (made.root / "usr/bin/sudo").chmod(0o755)
        made.write("/etc/hosts", HOSTS)
        address = f"10.77.0.{number}"
        made.write("/etc/systemd/network/10-test.network", SERVICE.format(address=address))
        wants = made.root / "etc/systemd/system/multi-user.target.wants"
        (wants / "mosquitto.service").unlink(missing_ok=True)
        (wants / "systemd-networkd.service").symlink_to(
            "/lib/systemd/system/systemd-networkd.service"
        )
        return made

    @property
    def all(self) -> list[Container]:
        return [self.broker, *self.boxes.values()]

    def boot(self) -> None:
        subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
        subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)
        for machine in self.all:
            machine.switch_on()
        for machine in self.all:
            machine.wait_until_up()

    def end(self) -> None:
        for child in self.asking.values():
            child.kill()
        for machine in self.all:
            machine.cut_power()
        subprocess.run(["ip", "link", "del", BRIDGE], check=False)

    def carry(self, machine: Container) -> None:
        """Carry the folder of enrolment to a box."""
        shutil.copytree(
            self.broker.root / "etc/fededge/pki/enrolment", machine.root / "root/enrolment"
        )

    def enroll(self, machine: Container, device: str, line: str) -> None:
        """Type the command of a box, which waits to be accepted."""
        child = Child(machine.inside("sh", "-c", f"cd && {line}"), self.folder / f"{device}.enroll")
        child.start()
        self.asking[device] = child

    def fingerprint(self, device: str) -> str:
        """The fingerprint that the box shows."""
        child = self.asking[device]

        def shown() -> list[str]:
            said = child.said(10)
            return re.findall(FINGERPRINT, said) if "is pending" in said else []

        return str(self.broker.wait_for(shown, f"{device} to ask")[0])

    def accept(self, device: str, line: str) -> None:
        """Type the operator's command on a terminal, and answer yes if the fingerprint is right."""
        expected, (ours, theirs) = self.fingerprint(device), os.openpty()
        process = subprocess.Popen(
            self.broker.inside("sh", "-c", line),
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.close(theirs)
        os.write(ours, b"y\n")
        said = process.communicate(timeout=60)[0].decode()
        os.close(ours)
        assert process.returncode == 0, said
        assert re.findall(FINGERPRINT, said)[0] == expected
        child = self.asking[device]
        self.broker.wait_for(lambda: child.exit_code is not None, f"{device} to be enrolled")
        assert child.exit_code == 0, child.said(20)

    def ask(self, *command: str) -> Any:
        return json.loads(self.broker.do("fededge", *command, *CONFIG, "--json"))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if why := obstacle() or ("" if shutil.which("ip") else "there is no ip here"):
        pytest.skip(why)
    made = None
    try:
        made = Machines(tmp_path_factory.mktemp("machines"))
        write_images(made.broker.root / "srv/gates/test", range(4), 10)
        for index, box in enumerate(made.boxes.values()):
            write_images(box.root / "srv/gates/labelled", range(index, index + 3), 20)
        made.boot()
    except (RuntimeError, subprocess.CalledProcessError) as error:
        if made is not None:
            made.end()
        pytest.skip(f"no containers with a network can be booted here: {error}")
    yield made
    made.end()


def test_ten_commands_make_a_closed_federation(machines: Machines) -> None:
    init, service, accept, look = commands("broker")
    enroll, start = commands("box")
    for line in (init, service):
        machines.broker.do("sh", "-c", line)
    for device, box in machines.boxes.items():
        machines.carry(box)
        machines.enroll(box, device, enroll.replace("gate-6", device))
    stranger = enroll.replace("gate-6", STRANGER).replace("--out /etc", f"--out /srv/{STRANGER}")
    machines.enroll(machines.boxes["gate-7"], STRANGER, stranger)
    for device, box in machines.boxes.items():
        machines.accept(device, accept.replace("gate-6", device))
        box.do("sh", "-c", start)

    def two_rounds() -> bool:
        rounds = machines.ask("history")["rounds"]
        return sum(set(done["devices"]) == set(BOXES) for done in rounds) >= 2

    machines.broker.wait_for(two_rounds, "two rounds", 150)
    said = machines.broker.do("sh", "-c", look)
    assert all(device in said for device in BOXES)
    assert STRANGER not in said
    assert STRANGER not in json.dumps(machines.ask("history"))
    machines.fingerprint(STRANGER)
    assert list(machines.ask("devices", "pending")) == [STRANGER]
