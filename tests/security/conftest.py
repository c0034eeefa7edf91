"""A fleet's certificates and closed brokers, made by `fededge init` as an operator makes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fededge.cli import main
from tests.integration.conftest import write_images
from tests.mosquitto import enterable, free_port, running
from tests.security.fleet import ACCOMPLICE, GHOST, HONEST, NAME, ROGUE, Fleet
from tests.security.own_methods import write_methods

DEVICES = ("gate-6", "gate-7", *HONEST, ROGUE, ACCOMPLICE, GHOST)


def make_certificates(folder: Path, host: str = "127.0.0.1") -> Path:
    arguments = ["init", "certificates", "--out", str(folder), "--broker", host]
    assert main([*arguments, "--devices", *DEVICES]) == 0
    return folder


Place = Callable[[str], Path]


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """Makes folders that a broker can enter, whoever starts it."""
    numbers = itertools.count()
    with enterable() as ground:

        def make(name: str) -> Path:
            folder = ground / f"{name}-{next(numbers)}"
            folder.mkdir()
            return folder

        yield make


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Instead of pytest's, which root's broker, another user by then, cannot enter."""
    with enterable() as folder:
        yield folder


@pytest.fixture(scope="session")
def pki(place: Place) -> Path:
    return make_certificates(place("pki"))


@pytest.fixture(scope="session")
def strangers(place: Place) -> Path:
    """Certificates with the same names, of another CA."""
    return make_certificates(place("strangers"))


@pytest.fixture(scope="session")
def own_methods(place: Place) -> list[str]:
    """Methods of a user's own, as the configurations name them."""
    return write_methods(place("methods"))


@pytest.fixture(scope="session")
def shared_fleet(pki: Path, own_methods: list[str], place: Place) -> Iterator[Fleet]:
    """A closed broker and the honest agents, for all attacks of a session."""
    folder, port = place("fleet"), free_port()
    broker, keys = folder / "broker", folder / "keys"
    assert main(["init", "key", "--out", str(keys)]) == 0
    arguments = ["init", "broker", "--out", str(broker), "--federation", NAME]
    assert main([*arguments, "--port", str(port), "--certificates", str(pki)]) == 0
    with running(broker, port):
        made = Fleet(folder, pki, keys, port, write_images(folder / "small.npz"))
        made.enlist(own_methods)
        yield made
        for child in made.children:
            child.kill()


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Iterator[Fleet]:
    """The fleet under attack; no attack may end or restart an honest agent."""
    processes = {device: child.pid for device, child in shared_fleet.agents.items()}
    yield shared_fleet
    for device, child in shared_fleet.agents.items():
        assert child.pid == processes[device] is not None, child.said(30)
