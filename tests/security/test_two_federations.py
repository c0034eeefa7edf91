"""Two federations on one closed broker: both run, at the same time, and neither hears the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fededge.cli import main
from fededge.errors import StoreError
from fededge.transport.probing import Probing
from fededge.wire.topics import Topics
from fededge_server.store import Store
from tests.integration.conftest import Federation, write_images
from tests.mosquitto import free_port, running
from tests.security.test_access import PATIENCE, Site

pytestmark = pytest.mark.slow

FLEETS = {"gates": ("gate-6", "gate-7"), "doors": ("gate-1", "gate-2")}


class Tenant(Federation):
    """One of the federations on the broker."""

    def __init__(self, folder: Path, images: Path, name: str, port: int, pki: Path) -> None:
        super().__init__(folder, {}, images, name)
        self.port, self.pki = port, pki

    def access(self, name: str) -> dict[str, Any]:
        files = {"ca": "ca.crt", "certificate": f"{name}.crt", "key": f"{name}.key"}
        paths = {key: str(self.pki / file) for key, file in files.items()}
        return {"host": "127.0.0.1", "port": self.port, "wait": 10.0, "tls": True, **paths}

    def launch(self) -> None:
        rounds = {"count": 2, "min_devices": 2}
        for index, device in enumerate(FLEETS[self.name]):
            self.agent(device, index, broker=self.access(device), export={"variants": []})
        self.coordinator(broker=self.access("coordinator"), rounds=rounds)

    def finish(self) -> None:
        self.wait_for(lambda: self.done, f"two rounds of {self.name}", 180.0)

    @property
    def done(self) -> bool:
        store = Store(self.state("coordinator"))
        with contextlib.suppress(StoreError):  # it may be empty yet
            return store.path.exists() and len(store.history()) == 3
        return False


@pytest.fixture
def tenants(pki: Path, place: Callable[[str], Path]) -> Iterator[list[Tenant]]:
    """`init broker` ran once for each, and the second added its rules."""
    folder, port = place("tenants"), free_port()
    make = ["init", "broker", "--out", str(folder / "broker"), "--certificates", str(pki)]
    for name in FLEETS:
        assert main([*make, "--port", str(port), "--federation", name]) == 0
        (folder / name).mkdir()
    images = write_images(folder / "small.npz")
    with running(folder / "broker", port):
        made = [Tenant(folder / name, images, name, port, pki) for name in FLEETS]
        yield made
        for tenant in made:
            for child in tenant.children:
                child.kill()


def test_two_federations_share_a_closed_broker(tenants: list[Tenant]) -> None:
    for tenant in tenants:
        tenant.launch()
    for tenant in tenants:
        tenant.finish()
    port, pki = tenants[0].port, tenants[0].pki
    site = Site(pki, port, pki, False)
    with Probing(site.user("coordinator"), PATIENCE) as line:
        line.subscribe([Topics(name).device("+", "status") for name in FLEETS])
        line.listen(1.0)
    heard = {tuple(each.topic.split("/")[2:5:2]) for each in line.heard}
    assert heard == {(name, device) for name, fleet in FLEETS.items() for device in fleet}
