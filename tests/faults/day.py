"""A federation without an end, for a day of simulated time.

Beside the faults of every run, devices join, leave and come back, an operator revokes and forgets
them, goes back to earlier versions, backs services up at any instant, between two commands too, and
restores a backup later. When the faults are over, rounds must follow each other again.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from fededge.broker.dynamic_security import CONTROL
from fededge.errors import FedEdgeError
from fededge.storage import archive
from fededge_agent.store import backup as agent_backup
from fededge_agent.store import checking as agent_files
from fededge_server.machine.fleet.orders import (
    ForgetOrder,
    ReleaseOrder,
    ResumeOrder,
    RevokeOrder,
)
from fededge_server.model.rollback import RollbackRequest
from fededge_server.store import Store
from fededge_server.store import backup as coordinator_backup
from fededge_server.store import checking as coordinator_files
from tests.faults.network import Packet
from tests.faults.operator import Operator
from tests.faults.oracle import BrokenError
from tests.faults.processes import FEDERATION, KilledError, Process, SimulatedCoordinator
from tests.faults.schedules import HOURS, chosen, counted, in_stages, kind
from tests.faults.world import NONE, Faults, Kind, World

__all__ = ["DAY_FAULTS", "DAY_KINDS", "Day", "run_day"]

DAY = 24 * 3600.0
LEASE = 3600.0
LEAP = 300.0
"""Seconds that pass at most when nobody has anything to do: less than a sign of life is due."""

FEWEST_HERE = 3
MOST_HERE = 7
ROUNDS_AFTER = 2
"""Versions that must be made after the faults."""


def all_day(encoding: str = "float32", **rounds: Any) -> Kind:
    """Rounds without an end, hours apart; a turn takes minutes."""
    common = {"count": 0, "interval": 7200.0, "deadline": 1800.0, "lease": LEASE, "min_devices": 2}
    return replace(kind(encoding, **{**common, **rounds}), turn=(60.0, 600.0))


DAY_KINDS = {
    "any": all_day(quorum=1),
    "in hours": all_day(hours=HOURS, encoding="bfloat16+delta"),
    "some, late ones folded": all_day(
        participants=2, over_select=1.5, late="fold", grace=60.0, encoding="float16+delta"
    ),
    "models in stages": in_stages(all_day(share=0.8, selection="round-robin")),
    "buffers of two": all_day(mode="buffered", buffer=2, encoding="int8+delta+zstd"),
}
DAY_FAULTS = {
    "a quiet fleet": Faults(steps=1, slow=0.2, order=0.01),
    "processes die": Faults(
        steps=1, kill=0.003, kill_at_boundary=0.0005, slow=0.2, rest=0.002, order=0.01
    ),
    "links break": Faults(
        steps=1,
        double=0.02,
        reorder=0.1,
        reconnect=0.003,
        partition=0.001,
        restart_broker=0.001,
        kill=0.001,
        slow=0.3,
        order=0.01,
    ),
    "disks are full at times": Faults(
        steps=1, fill_disk=0.002, free_disk=0.1, kill=0.001, order=0.01
    ),
}
CHANGES = {"join": 2, "leave": 2, "back up": 6, "restore": 2, "roll back": 1}
"""The day's own events, by weight."""

CHANGE = 0.01
BACKED_UP = 0.004
"""The probability of a backup between two commands."""


@dataclass(frozen=True)
class Kept:
    """A backup, and what the oracle knew of the coordinator then."""

    path: Path
    process: Process
    knew: dict[str, Any]


COORDINATORS = (
    "progress",
    "merges",
    "acknowledged",
    "merged",
    "refused",
    "chosen",
    "rounds",
    "barred",
    "void",
    "excused",
    "went_back",
)
"""The oracle's knowledge of the coordinator, which a restored backup takes back."""


@dataclass
class Day(World):
    """A day; `departed` are devices that are gone, for good or until they come back.

    `denied` are devices that the broker shuts out, by order of the coordinator; `restored` is True
    once the coordinator's journal may not know of all of them.
    """

    departed: list[Process] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    backups: list[Kept] = field(default_factory=list)
    restored: bool = False

    def populate(self) -> None:
        super().populate()
        self.shelf = self.disk.folder("backups")
        self.operator = FleetOperator(self)

    def live(self) -> str:
        while self.now < DAY:
            self.step()
            self.look()
        self.calm_down()
        assert self.oracle.progress is not None
        wanted = self.oracle.progress.rounds_done + ROUNDS_AFTER
        rounds = self.kind.config["rounds"]
        patience = (ROUNDS_AFTER + 2) * (rounds.interval + 2 * rounds.deadline) + LEASE
        while self.oracle.progress.rounds_done < wanted or not self.said:
            self.calm_step()
            self.look()
            if self.now - self.calm_since > patience:
                raise BrokenError(
                    f"{self.oracle.progress.rounds_done} rounds are done, and no other follows"
                )
        self.check_broker()
        return self.oracle.progress.version

    @property
    def said(self) -> bool:
        """The broker has every message, so that its denials are those of the coordinator."""
        return not self.outgoing(self.coordinator)

    def check_broker(self) -> None:
        """Everybody was released in the end."""
        if self.denied:
            raise BrokenError(f"{sorted(self.denied)} were released, and the broker denies them")

    # What happens

    def step(self) -> None:
        if self.chance(self.faults.order):
            self.operator.act()
        if self.chance(CHANGE):
            self.change()
        busy = [process for process in self.processes if self.wants(process)]
        if not busy or self.chance(0.02):
            self.pass_time(self.rng.uniform(1.0, LEAP))
        else:
            process = self.rng.choice(busy)
            if not self.mishap(process):
                self.act(process)

    def wants(self, process: Process) -> bool:
        """True if the process has work, or the network for it."""
        shut = process.name in self.denied and not process.due
        return not process.alive or process.due or (self.has_mail(process) and not shut)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for process in [*self.processes]:
            process.cut_off = process.cut_off and not self.chance(0.2)
            process.tick()

    def calm_step(self) -> None:
        """As without a day, but for the steps of time."""
        busy = [process for process in self.processes if self.wants(process)]
        for process in busy:
            if not process.alive:
                process.start()
            elif process.due:
                process.work()
            else:
                self.transfer(process)
        if not busy:
            self.pass_time(30.0)

    def transfer(self, process: Process) -> None:
        if process.name not in self.denied:
            super().transfer(process)

    def carried(self, sender: str, packet: Packet) -> None:
        if packet.topic == CONTROL:
            self.control(msgspec.json.decode(packet.payload)["commands"])
        super().carried(sender, packet)

    def control(self, commands: list[dict[str, str]]) -> None:
        """Do as the broker's plugin does: shut a device out at once, or let it in."""
        for each in commands:
            if each["command"] == "enableClient":
                self.denied.discard(each["username"])
            if each["command"] == "disableClient":
                self.denied.add(each["username"])
                for process in self.processes:
                    if process.name == each["username"]:
                        process.disconnect()

    def boundary(self, process: Process, command: object) -> None:
        if self.faults is not NONE and self.chance(BACKED_UP):
            self.back_up(process)
        super().boundary(process, command)

    def change(self) -> None:
        """One event of the day."""
        does: dict[str, Callable[[], None]] = {
            "join": self.join,
            "leave": self.leave,
            "back up": lambda: self.back_up(self.rng.choice(self.processes)),
            "restore": self.restore,
            "roll back": self.roll_back,
        }
        (what,) = self.rng.choices([*CHANGES], [*CHANGES.values()])
        does[what]()

    # Devices come and go

    def join(self) -> None:
        """A new device, or one that had left, with what it had then."""
        if len(self.processes) > MOST_HERE:
            return
        if self.departed and self.chance(0.5):
            process = self.departed.pop(self.rng.randrange(len(self.departed)))
            self.count("return", process.name)
        else:
            self.names.append(f"device-{len(self.names)}")
            process = self.device(self.names[-1])
            self.count("arrival", process.name)
        self.processes.append(process)

    def leave(self) -> None:
        if len(self.processes) <= FEWEST_HERE + 1:
            return
        process = self.rng.choice(self.processes[1:])
        self.count("departure", process.name)
        process.die(self.chance(0.5))
        self.processes.remove(process)
        self.departed.append(process)

    # The operator's files

    def back_up(self, process: Process) -> None:
        """Back a service up, running or not."""
        if not any(process.folder.glob("**/*")):
            return
        ours = isinstance(process, SimulatedCoordinator)
        about = archive.Contents(
            "coordinator" if ours else "agent", FEDERATION, process.name, "", "", ""
        )
        path = self.shelf / f"{len(self.backups)}.fededge"
        write = coordinator_backup.back_up if ours else agent_backup.back_up
        with mock.patch.object(self.disk, "before_write"):
            try:
                write(process.folder, path, about)
            except FedEdgeError as error:
                self.tell(f"no backup of {process.name}: {type(error).__name__}")
                return
        self.count("backup", process.name)
        knew = {name: copy.copy(getattr(self.oracle, name)) for name in COORDINATORS}
        self.backups.append(Kept(path, process, knew))

    def restore(self) -> None:
        """Stop a service, and let it go on from one of its backups."""
        here = [kept for kept in self.backups[-8:] if kept.process in self.processes]
        if not here:
            return
        kept = self.rng.choice(here)
        process = kept.process
        self.count("restore", process.name)
        process.die(False)
        ours = isinstance(process, SimulatedCoordinator)
        damage = coordinator_files.damage if ours else agent_files.damage
        self.disk.full.discard(process.name)
        with mock.patch.object(self.disk, "before_write"):
            shutil.rmtree(process.folder)
            contents = archive.read_contents(kept.path)
            archive.restore(kept.path, process.folder, contents, damage)
            self.disk.sync(process.folder.parent)
        if ours:
            self.take_back(kept.knew)
        else:
            self.oracle.strayed(process.name)

    def take_back(self, knew: dict[str, Any]) -> None:
        """The oracle knows of the coordinator what it knew; devices may have gone on."""
        self.restored = True
        gone = set(self.oracle.excused)
        for name, value in knew.items():
            setattr(self.oracle, name, copy.copy(value))
        self.oracle.excused |= gone
        for name in self.names:
            self.oracle.strayed(name)

    def roll_back(self) -> None:
        """Ask for an earlier version, or for the last good one."""
        folder = self.coordinator.folder
        if not (folder / "journal.sqlite").exists():
            return
        kept = [
            one.version
            for one in Store(folder).history()
            if Store(folder).model(one.version).exists()
        ]
        wanted = self.rng.choice([*kept, ""])
        self.count("rollback", wanted)
        with contextlib.suppress(KilledError), mock.patch.object(self.disk, "full", set()):
            RollbackRequest(folder).make(wanted)


class FleetOperator(Operator):
    """Also revokes devices. `forgotten` may be denied by the broker, and nobody knows of it."""

    def __init__(self, world: Day) -> None:
        super().__init__(world)
        self.forgotten: set[str] = set()

    def _drawn(self) -> Any:
        order = super()._drawn()
        if self.world.chance(0.15):
            return RevokeOrder(self.world.rng.choice(self.world.names))
        return order

    def give(self, order: Any) -> bool:
        given = super().give(order)
        if given and isinstance(order, ForgetOrder):
            self.forgotten.add(order.device)
        if given and isinstance(order, RevokeOrder):
            self.forgotten.discard(order.device)
        return given

    def settle(self) -> None:
        """Release everybody for whom an order is in force.

        A device that was forgotten while the broker denied it is unknown: it is revoked first. A
        journal that was restored does not know whom the broker denies: then all are released, by a
        coordinator that runs.
        """
        world = self.world
        assert isinstance(world, Day)
        if world.restored and not world.coordinator.alive:
            world.coordinator.start()
        self.give(ResumeOrder())
        for device in sorted(self.forgotten & world.denied):
            self.give(RevokeOrder(device))
        journal = (world.coordinator.folder / "journal.sqlite").exists()
        known = Store(world.coordinator.folder).standings() if journal else {}
        for device in world.names:
            unknown = world.restored and device in world.denied
            if device not in known and not unknown:
                continue
            if not self.give(ReleaseOrder(device)):
                self.give(RevokeOrder(device))
                self.give(ReleaseOrder(device))


def run_day(seed: int, trace: Callable[[str], None] | None = None) -> Counter[str]:
    """One day, its kind and faults chosen by the seed; counts what happened in it.

    Raises:
        BrokenError: if an invariant did not hold.
    """
    name, schedule = chosen(DAY_KINDS, DAY_FAULTS, seed)
    world = Day(seed, DAY_KINDS[name], DAY_FAULTS[schedule], trace)
    world.tell(f"seed {seed}: a day, {name}; {schedule}")
    world.run()
    return counted(world)
