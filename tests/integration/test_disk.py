"""Disks that are really full: a small one is mounted below the state folder, and filled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fededge._internal.processes import Child
from fededge.config import AgentConfig, CoordinatorConfig, template
from fededge.wire.messages import State, Status, decode
from tests.integration.test_federation import Listener
from tests.service_commands import service_command

if TYPE_CHECKING:
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow

FULL_DISK = """
mount -t tmpfs -o size=4m none "$1" || exit 9
head -c "$3" /dev/zero > "$1/filler"
(while [ ! -e "$2" ]; do sleep 0.1; done; rm "$1/filler") &
shift 3
exec "$@"
"""
SIZE = 4 * 1024 * 1024


def can_mount() -> bool:
    """In a name space of its own anybody may mount, where the kernel allows it."""
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_mount = pytest.mark.skipif(not can_mount(), reason="a disk cannot be mounted here (unshare)")


class Boxed:
    """Starts processes of a federation, each on a disk of four megabytes."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.release = federation.folder / "release"

    def start(self, command: str, config: str, free: int) -> Child:
        """`free`: bytes that the disk has left until it is released."""
        folder = self.federation.folder / command
        state = folder / "state"
        state.mkdir(parents=True)
        (folder / "config.toml").write_text(config)
        disk = ["sh", "-c", FULL_DISK, "sh", str(state), str(self.release), str(SIZE - free)]
        program = service_command(command, folder / "config.toml")
        child = Child(["unshare", "-rm", *disk, *program], folder / "log.txt")
        child.start()
        self.federation.children.append(child)
        return child


@pytest.fixture
def boxed(federation: Federation) -> Iterator[Boxed]:
    made = Boxed(federation)
    yield made
    made.release.touch()  # who waits for it must not wait for ever


def described(federation: Federation, **more: Any) -> dict[str, Any]:
    return {"federation": federation.name, "state": "state", "broker": federation.broker, **more}


@needs_mount
def test_a_coordinator_without_space_takes_nothing_says_so_and_goes_on(
    federation: Federation, boxed: Boxed
) -> None:
    values = described(
        federation,
        data={"source": "npz", "root": str(federation.images)},
        rounds={"count": 2, "min_devices": 1},
    )
    listener = Listener(federation)
    coordinator = boxed.start("coordinator", template(CoordinatorConfig, values), free=420_000)
    federation.agent("box", devices=1)

    def problem() -> str:
        said = [decode(message.payload, State) for message in listener.messages("state")]
        return said[-1].problem if said else ""

    federation.wait_for(problem, "the disk to be full")
    assert "disk is full" in problem()
    assert "the disk is full" in coordinator.said(50)
    assert coordinator.exit_code is None
    boxed.release.touch()
    assert federation.ended(coordinator) == 0, coordinator.said(20)
    assert "there is space again" in coordinator.said(50)
    assert problem() == ""
    last = decode(listener.messages("state")[-1].payload, State)
    assert (last.phase, last.round) == ("done", 2)


@needs_mount
def test_an_agent_without_space_says_so_and_goes_on(federation: Federation, boxed: Boxed) -> None:
    listener = Listener(federation)
    coordinator = federation.coordinator(
        rounds={"count": 1, "min_devices": 1, "backoff": 0.5, "retries": 1000}
    )
    data = {"source": "npz", "root": str(federation.images)}
    values = described(federation, device="box", data=data)
    agent = boxed.start("agent", template(AgentConfig, values), free=100_000)

    def problem() -> str:
        said = [decode(message.payload, Status) for message in listener.messages("status")]
        return next((status.problem for status in said if status.activity == "failed"), "")

    federation.wait_for(problem, "the disk to be full")
    assert "the disk is full" in problem()
    assert agent.exit_code is None
    boxed.release.touch()
    assert federation.ended(coordinator) == 0, coordinator.said(20)
    assert agent.exit_code is None
