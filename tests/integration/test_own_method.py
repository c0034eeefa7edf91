"""A method of a user's own on agents, as docs/methods.md shows it, over a real broker."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fededge._internal.processes import Child
from fededge.config import CoordinatorConfig, DataConfig, ModelConfig, load
from fededge.data.local import experiment_data, share_examples
from fededge.methods import Hyper, method
from fededge.simulation import Setup, Simulation
from fededge_server.store import Store
from tests.pages import blocks, page, write_example

if TYPE_CHECKING:
    from tests.integration.conftest import Federation

pytestmark = pytest.mark.slow

PAGE = page("methods.md")
PROGRAM = """
import os, sys
from fededge.cli import main
os.chdir(sys.argv.pop(1))
sys.exit(main())
"""


def write_configs(folder: Path, federation: Federation) -> None:
    """The page's three files, each under the name that the page gives it."""
    where = f'[broker]\nhost = "{federation.broker["host"]}"\nport = {federation.broker["port"]}\n'
    names = ("coordinator", "gate-1", "gate-2")
    for name, text in zip(names, blocks(PAGE, "toml"), strict=True):
        assert f"`{name}.toml`" in PAGE
        text = text.replace('federation = "gates"', f'federation = "{federation.name}"')
        (folder / f"{name}.toml").write_text(f"{text}{where}")


def start(folder: Path, federation: Federation, command: str) -> Child:
    """A command of the page, started in the folder that the page's files lie in."""
    words = shlex.split(command)[1:]
    log = folder / f"{len(federation.children)}.txt"
    child = Child([sys.executable, "-c", PROGRAM, str(folder), *words], log)
    child.start()
    federation.children.append(child)
    return child


def said(child: Child, sentence: str) -> bool:
    return sentence in child.log.read_text()


def simulated(config: CoordinatorConfig, rounds: int) -> str:
    data = DataConfig(source="embedded", split="dirichlet:0.5", devices=2)
    spec, train, test = experiment_data(ModelConfig(), data)
    devices = {f"gate-{i + 1}": part for i, part in enumerate(share_examples(train, data))}
    hyper = Hyper(**msgspec.structs.asdict(config.training))
    simulation = Simulation(Setup(config.method, spec, hyper, 0, devices, test.x, test.y))
    *_, last = simulation.rounds(rounds)
    return simulation.layout.sha256(last.model)


def test_the_federation_of_the_page_ends_with_the_weights_of_its_simulation(
    federation: Federation, tmp_path: Path
) -> None:
    """Two more devices take no part: one has no file, and one has another version of it."""
    write_example(tmp_path)
    write_configs(tmp_path, federation)
    config = load(tmp_path / "coordinator.toml", CoordinatorConfig)
    commands = [
        line
        for line in "".join(blocks(PAGE)).splitlines()
        if line.startswith(("fededge coordinator", "fededge agent"))
    ]
    other = tmp_path / "other" / "keepsake.py"
    other.parent.mkdir()
    other.write_bytes((tmp_path / "keepsake.py").read_bytes() + b"# another version\n")
    base = (tmp_path / "gate-2.toml").read_text()
    for name in ("gate-3", "gate-4"):
        (tmp_path / f"{name}.toml").write_text(base.replace("gate-2", name))
    coordinator = start(tmp_path, federation, commands[0])
    strangers = [
        start(tmp_path, federation, f"fededge agent --config {rest}")
        for rest in ("gate-3.toml", "gate-4.toml --method other/keepsake.py:Keepsake")
    ]
    (announced,) = method(config.method).files.values()
    (theirs,) = method(f"{other}:Keepsake").files.values()
    sentences = (
        f"'keepsake' is a plugin (SHA-256 {announced})",
        f"SHA-256 {announced}, but this device's has {theirs}: use the same file on both",
    )
    for child, sentence in zip(strangers, sentences, strict=True):
        federation.wait_for(partial(said, coordinator, sentence), "the coordinator to hear of it")
        assert said(child, "cannot take part: the federation's method 'keepsake'")
        assert said(child, sentence)

    agents = [start(tmp_path, federation, command) for command in commands[1:]]
    assert len(agents) == 2
    federation.wait_for(partial(said, coordinator, "rounds are done"), "the last round")
    coordinator.terminate()
    assert federation.ended(coordinator) == 0, coordinator.said(20)
    last = Store(Path(config.state)).history()[-1]
    assert last.rounds_done == config.rounds.count
    assert last.sha256 == simulated(config, config.rounds.count)
    assert [child.exit_code for child in strangers] == [None, None]
    for child in (*strangers, *agents):
        child.terminate()
    assert [federation.ended(child) for child in (*strangers, *agents)] == [0] * 4

    with (tmp_path / "keepsake.py").open("a") as file:
        file.write("# changed\n")
    again = start(tmp_path, federation, commands[0])
    assert federation.ended(again) == 2
    assert said(again, f"this run was begun with file of keepsake = {announced}")
