"""A federation as services under a real systemd: hardened, killed, hung, and cut from power.

One machine has the broker, the coordinator and two agents. It is booted long before its broker
runs, then every process is killed and stopped in turn, and the power is cut in mid-round. The run
must end by itself, with the weights of a run that nobody disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fededge.config import DataConfig, ModelConfig, TrainingConfig
from fededge.data.local import experiment_data, share_examples
from fededge.errors import StoreError
from fededge.methods import Hyper
from fededge.simulation import Setup, Simulation
from fededge_server.store import Store
from tests.integration.conftest import write_images
from tests.systemd.container import Container, obstacle, prepared_root

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROUNDS, EPOCHS = 9, 20
DEVICES = ("box-0", "box-1")
COORDINATOR = "fededge-coordinator"
UNITS = (COORDINATOR, *(f"fededge-agent@{device}" for device in DEVICES))
IMAGES = "/srv/images.npz"
PATIENCE = 240.0

# Importing torch on a busy machine must not look like a trainer that stalls.
STALL = 45

QUICK = """[Service]
WatchdogSec=10
RestartSec=1
"""

CONFIG = f"""
federation = "gates"
state = "/var/lib/{COORDINATOR}"
method = "scaffold"
signing_key = "keys/signing.key"
[broker]
username = "coordinator"
password_file = "broker/secrets/coordinator.password"
[training]
epochs = {EPOCHS}
[rounds]
count = {ROUNDS}
min_devices = 2
quorum = 2
backoff = 0.5
[data]
source = "npz"
root = "{IMAGES}"
"""

AGENT_CONFIG = f"""
federation = "gates"
device = "{{device}}"
state = "/var/lib/fededge-agent@{{device}}"
trusted_key = "/etc/fededge/keys/signing.pub"
[broker]
username = "{{device}}"
password_file = "/etc/fededge/broker/secrets/{{device}}.password"
[data]
source = "npz"
root = "{IMAGES}"
split = "dirichlet:0.5"
devices = 2
index = {{index}}
[hardware]
threads = 1
stall = {STALL}
"""


class Machine(Container):
    """A container with a federation in it."""

    def configure(self) -> None:
        write_images(self.root / IMAGES.lstrip("/"))
        self.write("/etc/fededge/coordinator.toml", CONFIG)
        for index, device in enumerate(DEVICES):
            text = AGENT_CONFIG.format(device=device, index=index)
            self.write(f"/etc/fededge/{device}/agent.toml", text)

    def install(self) -> None:
        """Follow the documents: a closed broker, keys, and the services."""
        self.do("systemctl", "disable", "--now", "mosquitto")
        out, keys = ("--out", "/etc/fededge/broker"), ("--out", "/etc/fededge/keys")
        self.do("fededge", "init", "broker", *out, "--federation", "gates", "--devices", *DEVICES)
        self.do("fededge", "init", "key", *keys)
        self.do("cp", "/etc/fededge/broker/mosquitto.conf", "/etc/mosquitto/mosquitto.conf")
        self.do("fededge", "install-service", "coordinator")
        for device in DEVICES:
            self.do("fededge", "install-service", "agent", "--instance", device)
        for unit in (COORDINATOR, "fededge-agent@"):
            self.write(f"/etc/systemd/system/{unit}.service.d/quick.conf", QUICK)
        self.do("systemctl", "enable", *UNITS)

    @property
    def rounds_done(self) -> int:
        try:
            return max(0, len(self.store.history()) - 1)
        except StoreError:
            return 0

    @property
    def store(self) -> Store:
        return Store(self.root / "var/lib/private" / COORDINATOR)

    def await_round(self) -> None:
        """Wait until one more round is done."""
        before = self.rounds_done
        self.wait_for(lambda: self.rounds_done > before, "another round", PATIENCE)

    def restarts(self) -> list[int]:
        return [int(self.show(unit, "NRestarts")) for unit in UNITS]

    def signal(self, name: str) -> None:
        """Send a signal to the main process of each service."""
        for unit in UNITS:
            self.do("systemctl", "kill", f"--signal={name}", "--kill-whom=main", unit)

    def trainer(self, unit: str) -> str:
        """The process id, inside, of an agent's trainer process; empty if it has none."""
        main = self.show(unit, "MainPID")
        return self.ask("pgrep", "--parent", main, "--full", "fededge_agent.trainer")

    def secrets(self) -> list[str]:
        folder = self.root / "etc/fededge"
        passwords = [path.read_text().strip() for path in folder.glob("broker/secrets/*")]
        key = (folder / "keys/signing.key").read_text().splitlines()
        return [*passwords, *(line for line in key if not line.startswith("--"))]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if why := obstacle():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("machine")
    made = Machine(folder / "root", folder / "console.log")
    try:
        made.copy_from(prepared_root())
        made.configure()
        made.boot()
    except RuntimeError as error:
        made.cut_power()
        pytest.skip(f"no container can be booted here: {error}")
    yield made
    made.cut_power()


def undisturbed(images: Path) -> str:
    """The hash of the last model of a simulation of the same run."""
    data = DataConfig(source="npz", root=str(images), split="dirichlet:0.5", devices=2, seed=0)
    spec, train, test = experiment_data(ModelConfig(), data)
    devices = dict(zip(DEVICES, share_examples(train, data), strict=True))
    hyper = Hyper(**msgspec.structs.asdict(TrainingConfig(epochs=EPOCHS)))
    simulation = Simulation(Setup("scaffold", spec, hyper, 0, devices, test.x, test.y))
    *_, last = simulation.rounds(ROUNDS)
    return simulation.layout.sha256(last.model)


def wait_for_their_broker(machine: Machine) -> None:
    """The services are up although no broker is, and say what they wait for."""

    def all_wait() -> bool:
        said = [machine.show(unit, "StatusText") for unit in UNITS]
        return all(text.startswith("waiting for the broker") for text in said)

    machine.wait_for(all_wait, "all services to wait", PATIENCE)
    assert [machine.show(unit, "ActiveState") for unit in UNITS] == ["active"] * len(UNITS)
    assert machine.restarts() == [0] * len(UNITS)
    machine.do("systemctl", "enable", "--now", "mosquitto")
    machine.await_round()


def come_back(machine: Machine, disturb: Callable[[], None]) -> None:
    """Every service is started again, and the federation goes on."""
    before = machine.restarts()
    disturb()

    def all_again() -> bool:
        now = machine.restarts()
        again = all(later > earlier for later, earlier in zip(now, before, strict=True))
        return again and all(machine.show(unit, "ActiveState") == "active" for unit in UNITS)

    machine.wait_for(all_again, "all services to come back", PATIENCE)
    machine.await_round()


def lose_a_trainer(machine: Machine) -> None:
    """A trainer process that hangs is replaced; its agent stays."""
    unit = UNITS[1]
    agent = machine.show(unit, "MainPID")
    trainer = machine.wait_for(lambda: machine.trainer(unit), "a trainer process")
    machine.do("kill", "-STOP", trainer)

    def noticed() -> bool:
        return "made no progress" in machine.ask("journalctl", "--no-pager", f"--unit={unit}")

    machine.wait_for(noticed, "the agent to notice", PATIENCE)
    machine.await_round()
    assert machine.show(unit, "MainPID") == agent


def test_a_federation_of_services_survives_all_that_happens_in_a_year(machine: Machine) -> None:
    machine.install()
    machine.cut_power()
    machine.boot()
    wait_for_their_broker(machine)
    assert machine.show(COORDINATOR, "DynamicUser") == "yes"
    assert {machine.show(unit, "ProtectSystem") for unit in UNITS} == {"strict"}
    come_back(machine, lambda: machine.signal("KILL"))
    come_back(machine, lambda: machine.signal("STOP"))
    assert "Watchdog timeout" in machine.ask("journalctl", "--no-pager", "--unit=fededge-*")
    lose_a_trainer(machine)
    assert machine.rounds_done < ROUNDS
    machine.cut_power()
    machine.boot()

    machine.wait_for(lambda: machine.rounds_done == ROUNDS, "the rounds to be done", PATIENCE)
    assert machine.show(COORDINATOR, "ActiveState") == "active", "it serves what it has"
    last = machine.store.history()[-1]
    assert last.rounds_done == ROUNDS
    assert last.sha256 == undisturbed(machine.root / IMAGES.lstrip("/"))
    journal = machine.ask("journalctl", "--no-pager", "--all")
    assert [secret for secret in machine.secrets() if secret in journal] == []
