"""The local API: over its real socket, with a real coordinator's loop behind it."""

from __future__ import annotations

import io
import queue
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from rich.console import Console

from fededge.cli.fleet.device_table import device_table, round_line
from fededge.errors import RefusedError, StoreError
from fededge_server.api import http_app
from fededge_server.api.client import FleetClient, UnixConnection
from fededge_server.api.server import ApiServer
from fededge_server.machine.events import StatusCame
from fededge_server.machine.fleet.orders import (
    ApplyOrder,
    DrainOrder,
    ForgetOrder,
    PauseOrder,
    PinOrder,
    QuarantineOrder,
    UnpinOrder,
)
from fededge_server.machine.fleet.standings import Standing
from fededge_server.machine.settings import with_keys
from fededge_server.store import Role, Store
from tests.faults.world import World
from tests.server.test_running import opened_world, running

T = TypeVar("T")


class Site:
    """A coordinator whose first round is open, its API, and an operator's client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.store = running(world).parts.store
        self.api = ApiServer(self.store, self.inbox, patience=60.0)
        self.fleet = FleetClient(world.coordinator.config)

    def start(self) -> None:
        self.api.start()
        assert self.api._ready.wait(60)

    def do(self, ask: Callable[[], T]) -> T:
        """Ask in another thread, and let the coordinator's loop run here until that is answered."""
        answers: list[T | Exception] = []

        def asking() -> None:
            try:
                answers.append(ask())
            except Exception as error:  # noqa: BLE001 - it is raised again below
                answers.append(error)
            self.inbox.put(None)

        thread = threading.Thread(target=asking)
        thread.start()
        while (event := self.inbox.get(timeout=60)) is not None:
            running(self.world).take(event)
        thread.join()
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def raw(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        """Ask what needs no answer from the loop."""
        connection = UnixConnection(self.api.path)
        connection.request(method, path, body)
        response = connection.getresponse()
        code, text = response.status, response.read()
        connection.close()
        return code, msgspec.json.decode(text)


@pytest.fixture
def world() -> Iterator[World]:
    yield from opened_world("all")


@pytest.fixture
def site(world: World) -> Iterator[Site]:
    made = Site(world)
    made.start()
    yield made
    made.api.stop()


def test_the_status_has_the_round_and_each_device(site: Site) -> None:
    status = site.do(site.fleet.status)
    assert (status.coordinator, status.phase, status.asked) == ("running", "open", 4)
    assert status.deadline_left is not None
    assert 0 < status.deadline_left < 61
    assert [one.part for one in status.devices] == ["invited"] * 4
    assert site.do(site.fleet.devices) == status.devices
    assert site.do(lambda: site.fleet.device(status.devices[0].device)) == status.devices[0]


def test_an_order_is_durable_and_in_force_when_it_is_answered(site: Site) -> None:
    name = site.do(site.fleet.devices)[0].device
    outcome = site.do(lambda: site.fleet.order(QuarantineOrder(name)))
    assert outcome.changed
    assert site.store.recall().standings[name][0] is Standing.QUARANTINED
    assert site.do(lambda: site.fleet.device(name)).part == "quarantined"
    assert not site.do(lambda: site.fleet.order(QuarantineOrder(name))).changed
    history = site.do(site.fleet.history)
    assert [order["order"] for order in history.orders] == ["quarantine"]


def test_a_version_is_pinned_while_the_coordinator_runs(site: Site) -> None:
    version = site.do(site.fleet.status).version
    assert site.do(lambda: site.fleet.order(PinOrder(version))).changed
    code, answer = site.raw("GET", "/versions")
    assert (code, [(one["version"], one["pinned"]) for one in answer]) == (200, [(version, True)])
    assert site.do(site.fleet.status).phase == "open", "the round goes on"
    assert site.do(lambda: site.fleet.order(UnpinOrder(version))).changed
    with pytest.raises(RefusedError, match="no version '000009-0123456789abcdef'"):
        site.do(lambda: site.fleet.order(PinOrder("000009-0123456789abcdef")))
    history = site.do(site.fleet.history)
    assert [order["order"] for order in history.orders] == ["pin", "unpin"]


def test_errors_are_one_sentence(site: Site) -> None:
    with pytest.raises(RefusedError, match="no device 'nobody'"):
        site.do(lambda: site.fleet.device("nobody"))
    with pytest.raises(RefusedError, match="no device 'nobody'"):
        site.do(lambda: site.fleet.order(DrainOrder("nobody")))
    assert site.raw("GET", "/nothing")[0] == 404
    assert site.raw("POST", "/status")[0] == 405
    code, answer = site.raw("POST", "/orders", b'{"order": "burn"}')
    assert (code, answer["error"].startswith("not an order:")) == (409, True)
    code, answer = site.raw("POST", "/orders", b" " * (http_app.MOST_BYTES + 1))
    assert (code, "error" in answer) == (413, True)


def test_an_order_that_finds_the_disk_full_is_refused_and_not_in_force(site: Site) -> None:
    name = site.do(site.fleet.devices)[0].device
    site.world.disk.full.add("coordinator")
    with pytest.raises(RefusedError, match="the disk is full"):
        site.do(lambda: site.fleet.order(QuarantineOrder(name)))
    site.world.disk.full.clear()
    assert site.do(lambda: site.fleet.device(name)).standing == "active"
    assert site.store.orders() == []


def test_a_client_that_hangs_holds_nobody_up(site: Site) -> None:
    hanging = [UnixConnection(site.api.path) for _ in range(3)]
    for connection, text in zip(hanging, (b"", b"GET /sta", HALF), strict=True):
        connection.connect()
        assert isinstance(connection.sock, socket.socket)
        connection.sock.sendall(text)
    assert site.do(site.fleet.status).coordinator == "running"
    for connection in hanging:
        connection.close()


HALF = b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"


def test_a_loop_that_does_not_answer_is_told_from_one_that_does(world: World) -> None:
    site = Site(world)
    site.api.patience = 0.2
    site.start()
    with pytest.raises(RefusedError, match="has not answered within 0 s"):
        site.fleet.status()
    site.api.stop()


def test_requests_that_wait_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app, "MOST_REQUESTS", 2)
    site = Site(world)
    site.start()
    waiting = [threading.Thread(target=site.fleet.devices) for _ in range(2)]
    for thread in waiting:
        thread.start()
    asked = [site.inbox.get(timeout=60) for _ in waiting]
    code, answer = site.raw("GET", "/status")
    assert (code, answer["error"]) == (503, "2 requests wait already; try again")
    for request in asked:
        running(world).take(request)
    for thread in waiting:
        thread.join()
    site.api.stop()


def test_the_socket_is_for_one_user_and_goes_with_the_api(site: Site) -> None:
    assert stat.S_IMODE(site.api.path.stat().st_mode) == 0o600
    site.api.stop()
    assert not site.api.path.exists()


def test_a_socket_that_a_killed_process_left_is_replaced(world: World) -> None:
    site = Site(world)
    site.api.path.touch()
    site.start()
    assert site.do(site.fleet.status).coordinator == "running"
    site.api.stop()


def test_a_long_path_is_no_hindrance(world: World, tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 30) / ("longer" * 20)
    deep.mkdir(parents=True)
    site = Site(world)
    site.api.path, site.fleet.folder = deep / site.api.path.name, deep
    site.start()
    assert site.do(site.fleet.status).coordinator == "running"
    site.api.stop()


# A coordinator that is down


def test_an_order_waits_for_a_coordinator_that_starts(world: World) -> None:
    site = Site(world)
    later = threading.Timer(0.3, site.api.start)
    later.start()
    assert site.do(lambda: site.fleet.order(PauseOrder())).changed
    later.join()
    site.api.stop()


def test_orders_work_on_the_folder_of_a_coordinator_that_is_down(world: World) -> None:
    fleet = FleetClient(world.coordinator.config)
    names = [*running(world).parts.rounds.participants]
    fleet.patience = 0.0
    with pytest.raises(RefusedError, match="runs but does not listen"):
        fleet.order(PauseOrder())
    world.coordinator.die(power_cut=False)
    assert fleet.order(PauseOrder()).changed
    assert fleet.order(DrainOrder(names[0])).changed
    assert fleet.order(ForgetOrder(names[1])).changed
    status = fleet.status()
    assert (status.coordinator, status.paused) == ("down", True)
    assert {one.device: one.standing for one in status.devices} == {
        names[0]: "drained",
        names[2]: "active",
        names[3]: "active",
    }
    assert fleet.device(names[0]) in status.devices
    assert [order["order"] for order in fleet.history().orders] == ["pause", "drain", "forget"]
    world.coordinator.start()
    parts = running(world).parts
    assert parts.view.paused
    assert parts.rounds.participants[names[0]].standing is Standing.DRAINED
    assert names[1] not in parts.rounds.participants


def test_a_folder_without_a_journal_is_one_sentence(world: World, tmp_path: Path) -> None:
    fleet = FleetClient(world.coordinator.config)
    fleet.folder = tmp_path
    for use in (fleet.status, lambda: fleet.order(PauseOrder())):
        with pytest.raises(StoreError, match="the coordinator has not run here yet"):
            use()
    assert not Store(tmp_path).path.exists()


# The reasons why a round waits


def test_the_status_says_what_the_round_waits_for(site: Site) -> None:
    def told() -> tuple[str, set[str]]:
        status = site.do(site.fleet.status)
        return status.waits_for, {one.doing for one in status.devices}

    waits, doing = told()
    assert waits == "the updates of device-0, device-1, device-2, device-3"
    assert doing <= {"asked", "fetching", "training"}
    site.do(lambda: site.fleet.order(PauseOrder()))
    for _ in range(2000):
        if running(site.world).parts.view.phase == "waiting":
            break
        site.world.calm_step()
    waits, doing = told()
    assert waits == "`fededge resume`: an operator has paused the federation"
    assert doing == {"idle"}
    status = site.do(site.fleet.status)
    assert all(one.took is not None and one.took >= 0 for one in status.devices)


def test_the_status_says_why_a_device_is_not_in_the_round(site: Site) -> None:
    parts = running(site.world).parts
    one = parts.rounds.participants["device-0"]
    assert one.status is not None
    unable = msgspec.structs.replace(one.status, activity="unable", problem="a label is unknown")
    running(site.world).handle(StatusCame("device-0", unable))
    found = site.do(lambda: site.fleet.device("device-0"))
    assert (found.doing, found.why) == ("failed", "a label is unknown")
    table = Console(file=io.StringIO(), width=200)
    table.print(round_line(site.do(site.fleet.status)), device_table([found]))
    assert isinstance(table.file, io.StringIO)
    said = table.file.getvalue()
    assert "a label is unknown" in said
    assert "0 of 4 devices have answered" in said


@pytest.mark.parametrize(
    ("step", "steps", "shown"),
    [(3, 40, (3, 40)), (40, 40, (40, 40)), (41, 40, None), (0, 40, None), (5, 0, None)],
)
def test_a_devices_progress_is_shown_if_it_makes_sense(
    site: Site, step: int, steps: int, shown: tuple[int, int] | None
) -> None:
    one = running(site.world).parts.rounds.participants["device-0"]
    assert one.status is not None
    training = msgspec.structs.replace(one.status, activity="training", step=step, steps=steps)
    running(site.world).handle(StatusCame("device-0", training))
    found = site.do(lambda: site.fleet.device("device-0"))
    assert (found.doing, found.steps) == ("training", shown)


def test_settings_are_applied_over_the_api_and_checked_by_the_coordinator(site: Site) -> None:
    now = site.store.settings()[Role.IN_FORCE]
    wanted = with_keys(now, {"training.lr": 0.5, "method": "fedavg"})
    assert site.do(lambda: site.fleet.order(ApplyOrder(wanted))).changed
    assert site.store.settings()[Role.ORDERED] == wanted
    wrong = with_keys(now, {"rounds.quorum": 9})
    with pytest.raises(RefusedError, match=r"rounds.quorum is 9, but a round may begin with 4"):
        site.do(lambda: site.fleet.order(ApplyOrder(wrong)))
    code, answer = site.raw("POST", "/orders", b'{"order": "apply", "settings": {"lr": 1}}')
    assert code == 409
    assert "not an order" in answer["error"]
    assert site.store.settings()[Role.ORDERED] == wanted
