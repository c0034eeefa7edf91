"""A closed federation of real processes that an operator keeps, with the commands of a page."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fededge._internal.processes import Child
from fededge.cli import main
from tests.integration.conftest import write_images
from tests.mosquitto import free_port, running

__all__ = ["CONFIG", "FINGERPRINT", "Town", "table", "with_settings"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operation.md"
FINGERPRINT = r"(?:[0-9a-f]{4}-){7}[0-9a-f]{4}"
PATIENCE = 120.0
CONFIG = ("--config", "coordinator.toml")


def table() -> dict[str, list[str]]:
    """The commands of each row of the page's table."""
    section = PAGE.read_text().partition("## Day by day\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", section, re.MULTILINE)
    known = r"`((?:fededge|systemctl|mv) [^`]*)`"
    return {name: re.findall(known, cell) for name, cell in rows if name != "to"}


def with_settings(path: Path, section: str, **values: str) -> None:
    """Set keys of a section in a configuration that `fededge init` wrote."""
    head, mark, tail = path.read_text().partition(f"\n[{section}]\n")
    assert mark, section
    for key, value in values.items():
        tail, count = re.subn(rf"^(# )?{key} = .*$", f"{key} = {value}", tail, count=1, flags=re.M)
        assert count, key
    path.write_text(head + mark + tail)


class Town:
    """The folder of the broker's machine, and a folder for each box."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.images = write_images(folder / "small.npz")
        self.boxes = {device: folder / device for device in ("gate-6", "gate-7")}
        self.services: dict[str, Child] = {}
        self.broker = contextlib.ExitStack()

    def found(self) -> None:
        """Make the federation with two boxes."""
        place = ["--broker", "127.0.0.1", "--port", str(self.port), "--out", str(self.folder)]
        data = ["--data", f"npz:{self.images}"]
        self.fededge("init", "federation", "--federation", "gates", *place, *data)
        rounds = {"count": "0", "interval": "0.5", "min_devices": "1", "backoff": "0.5"}
        with_settings(self.folder / "coordinator.toml", "rounds", **rounds)
        self.start_broker()
        for device in self.boxes:
            request, answer = (f"--{kind}={device}.{kind}" for kind in ("request", "answer"))
            box = ["enroll", "--device", device, "--out", device]
            shown = re.findall(FINGERPRINT, self.fededge(*box, request))[0]
            operator = ["--certificates", "pki", *CONFIG, "--fingerprint", shown]
            self.fededge("devices", "accept", device, *operator, request, answer)
            self.fededge(*box, answer, *data)
            self.settle(device)
            self.start(device)
        self.start("coordinator")

    def settle(self, device: str) -> None:
        """Give a box its share of the images."""
        index = str(int(device[-1]) - 6)
        share = {"split": '"dirichlet:0.5"', "devices": "3", "index": index}
        with_settings(self.boxes[device] / "agent.toml", "data", **share)

    # Processes

    def start_broker(self) -> None:
        child = self.broker.enter_context(running(self.folder / "broker", self.port))
        self.services["mosquitto"] = child

    def start(self, name: str) -> None:
        """Start an agent by its device, or the coordinator, also that of another federation."""
        role, _, instance = name.partition("@")
        role = role if role == "coordinator" else "agent"
        config = self.boxes.get(name, self.folder / instance)
        command = [sys.executable, "-m", "fededge", role, "--config"]
        child = Child([*command, str(config / f"{role}.toml")], self.folder / f"{name}.log")
        child.start()
        self.services[name] = child

    def stop(self, name: str) -> None:
        self.services[name].stop(30.0)

    def end(self) -> None:
        for child in self.services.values():
            child.kill()
        self.broker.close()

    def systemctl(self, verb: str, unit: str, box: str) -> None:
        """Do to our processes what systemd would do to the services."""
        if unit == "mosquitto":
            self.broker.close()
            self.start_broker()
            return
        name = box if unit == "fededge-agent" else unit.removeprefix("fededge-")
        if verb in ("stop", "restart"):
            self.stop(name)
        if verb in ("start", "restart"):
            self.start(name)

    # Commands

    def fededge(self, *words: str) -> str:
        """Run a command that must succeed, in the folder of the broker's machine."""
        code, said = self._run(*words)
        assert code == 0, f"{' '.join(words)}: {said}"
        return said

    def _run(self, *words: str) -> tuple[int, str]:
        said, before = io.StringIO(), Path.cwd()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = main(list(words))
        finally:
            os.chdir(before)
        return code, said.getvalue()

    def ask(self, *words: str) -> Any:
        return json.loads(self.fededge(*words, *CONFIG, "--json"))

    def play(self, line: str, box: str = "gate-7", fingerprint: str = "") -> str:
        """Run a line of the table; its example of a place or a fingerprint becomes ours."""
        line = line.replace("broker.example", f"127.0.0.1 --port {self.port}")
        line = line.replace("--certificates enrolment", "--certificates pki/enrolment")
        line = line.replace("folder:images", f"npz:{self.images}")
        if fingerprint:
            line = re.sub(FINGERPRINT, fingerprint, line)
        program, *words = shlex.split(line)
        if program == "systemctl":
            verb, unit = words
            self.systemctl(verb, unit, box)
        elif program == "mv":
            shutil.move(self.folder / words[0], self.folder / words[1])
        else:
            return self.fededge(*words)
        return ""

    def enroll(self, line: str, device: str) -> Child:
        """Begin to enrol a box over the broker; return the command that waits."""
        line = line.replace("broker.example", f"127.0.0.1 --port {self.port}")
        enrolment = self.folder / "pki" / "enrolment"
        line = line.replace("--certificates enrolment", f"--certificates {enrolment}")
        line = line.replace("folder:images", f"npz:{self.images}")
        *words, out = shlex.split(line)[1:]
        self.boxes[device] = self.folder / out
        command = [sys.executable, "-m", "fededge", *words, str(self.boxes[device])]
        child = Child(command, self.folder / f"{device}.enroll")
        child.log.unlink(missing_ok=True)
        child.start()
        self.services[f"enroll {device}"] = child
        self.wait(lambda: "is pending" in child.said(), f"{device} to ask")
        return child

    # What is seen

    def rounds(self) -> list[dict[str, Any]]:
        """All versions; none while there is no journal yet."""
        code, said = self._run("history", *CONFIG, "--json")
        return [] if code else list(json.loads(said)["rounds"])

    def device(self, name: str) -> dict[str, Any]:
        found = {one["device"]: one for one in self.ask("devices", "list")}
        return dict(found.get(name, {}))

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.1)
        logs = "\n\n".join(f"{name}:\n{child.said(15)}" for name, child in self.services.items())
        raise AssertionError(f"waited {PATIENCE:.0f} s for {what}\n{logs}")

    def await_round(self, *devices: str) -> None:
        """Wait for another round, which exactly these devices took part in."""
        before = self.wait(self.rounds, "a version")[-1]["version"]

        def done() -> bool:
            new = [one for one in self.rounds() if one["version"] > before]
            return any(set(one["devices"]) == set(devices) for one in new)

        self.wait(done, f"a round of {', '.join(devices)}")
