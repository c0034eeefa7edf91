"""`fededge status`: show the state of a federation, from its broker's retained messages."""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from fededge._internal.plain_text import plain
from fededge.config import BrokerConfig, CoordinatorConfig, load_either
from fededge.config.sections import Side
from fededge.errors import FedEdgeError, TransportError, WireError
from fededge.transport.session import Incoming, Session
from fededge.wire.messages import Presence, State, Status, decode
from fededge.wire.topics import Topics

__all__ = ["add_to"]

TEXT = """\
Show the state of a federation: its round, its model, and each device's activity. It reads the
retained topics and changes nothing; any configuration file of the federation will do. With the
coordinator's, on its machine, it also shows what the round waits for, and each device's part in it.

examples:
  fededge status --config coordinator.toml
  fededge status --config agent.toml --json
  fededge status --config coordinator.toml --watch
"""

PAUSE = 1.5
"""Seconds between two looks of --watch."""

QUIET = 0.5
"""Seconds without a message after which all retained ones have arrived."""


@dataclass
class FederationStatus:
    """The state of a federation, from its retained topics and the coordinator's journal.

    `fleet` is the coordinator's own view, from its API or its folder, where that is at hand.
    """

    state: State | None = None
    coordinator: Presence | None = None
    devices: dict[str, Status] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    quarantined: frozenset[str] = frozenset()
    fleet: Any = None

    def store(self, topics: Topics, message: Incoming) -> None:
        """Store a message; ignore one that is not of the protocol."""
        with contextlib.suppress(WireError):
            address = topics.parse(message.topic)
            if address.kind == "state":
                self.state = decode(message.payload, State)
            elif address.kind == "coordinator status":
                self.coordinator = decode(message.payload, Presence)
            elif address.kind == "status":
                self.devices[address.device] = decode(message.payload, Status)


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as one JSON object")
    how.add_argument("--watch", action="store_true", help="refresh in place, until Ctrl-C")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    config = load_either(options.config)
    console = Console(highlight=False, markup=False, emoji=False)
    if options.watch:
        _watch(config, console)
    elif options.json:
        print(json.dumps(_json(config.federation, _look(config)), indent=1))
    else:
        _show(config.federation, _look(config), console)


def _look(config: Side) -> FederationStatus:
    """Read the broker's messages, and on the coordinator's machine its own view and journal."""
    found = read_status(config.broker, Topics(config.federation))
    if not isinstance(config, CoordinatorConfig):
        return found
    from fededge_server.api.client import FleetClient
    from fededge_server.store import Store

    store = Store(Path(config.state))
    if store.path.exists():
        found.asked, found.quarantined = store.roster()
        found.fleet = FleetClient(config).status()
    return found


def _watch(config: Side, console: Console) -> None:
    """Show the status again and again in the same place; an error is shown there too."""
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                found = _look(config)
                with console.capture() as shown:
                    _show(config.federation, found, console)
                text = shown.get()
            except FedEdgeError as error:
                text = plain(str(error))
            live.update(Text.from_ansi(text), refresh=True)
            time.sleep(PAUSE)


def read_status(broker: BrokerConfig, topics: Topics) -> FederationStatus:
    """Read the retained messages of a federation."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    session = Session(broker, f"status-{uuid.uuid4().hex[:12]}", inbox)
    for topic in (topics.state, f"{topics.coordinator}/status", topics.device("+", "status")):
        session.subscribe(topic)
    session.start()
    try:
        return _listen(topics, inbox, time.monotonic() + broker.wait)
    finally:
        session.stop()


def _listen(topics: Topics, inbox: queue.SimpleQueue[Any], deadline: float) -> FederationStatus:
    found = FederationStatus()
    with contextlib.suppress(queue.Empty):
        while time.monotonic() < deadline:
            event = inbox.get(timeout=QUIET)
            if isinstance(event, Incoming):
                found.store(topics, event)
                event.ack()
    if found.state is None and found.coordinator is None and not found.devices:
        raise TransportError(
            f"the broker has no messages of a federation '{topics.federation}': start its "
            "coordinator, or correct the name in the configuration"
        )
    return found


def _json(federation: str, found: FederationStatus) -> dict[str, Any]:
    state = found.state
    return {
        "federation": federation,
        "coordinator": bool(found.coordinator and found.coordinator.online),
        "state": None if state is None else _brief(state),
        "asked": sorted(found.asked),
        "quarantined": sorted(found.quarantined),
        "fleet": msgspec.to_builtins(found.fleet),
        "devices": {name: msgspec.to_builtins(s) for name, s in sorted(found.devices.items())},
    }


def _brief(state: State) -> dict[str, Any]:
    fields = ["phase", "round", "rounds", "version", "method", "accuracy", "asked", "run"]
    fields += ["encoding", "deadline", "problem", "quarantined", "restored", "resting"]
    values: Mapping[str, Any] = msgspec.to_builtins(state)
    return {name: values[name] for name in fields}


def _rounds(state: State) -> str:
    return f"{state.round} of {state.rounds}" if state.rounds else str(state.round)


def _show(federation: str, found: FederationStatus, console: Console) -> None:
    state = found.state
    here = found.coordinator is not None and found.coordinator.online
    console.print(f"federation {federation}: coordinator {'online' if here else 'offline'}")
    if state is not None:
        score = "" if state.accuracy is None else f", global accuracy {state.accuracy:.1%}"
        console.print(
            f"{state.phase}: {_rounds(state)} rounds done, model {state.version}{score}; "
            f"{plain(state.method)}",
            soft_wrap=True,
        )
        if state.resting:
            ends = f"; it ends in {state.deadline:.0f} s" if state.deadline else ""
            console.print(f"resting: {plain(state.resting)}{ends}", soft_wrap=True)
        if state.phase == "open" or state.quarantined:
            console.print(f"{state.asked} devices are asked, {state.quarantined} in quarantine")
        if state.restored:
            console.print(f"this version has the model of {state.restored}")
        if state.problem:
            console.print(plain(state.problem), soft_wrap=True)
    if found.fleet is None:
        console.print(_table(found))
        return
    from fededge.cli.fleet.device_table import device_table, round_line

    console.print(round_line(found.fleet), soft_wrap=True)
    console.print(device_table(found.fleet.devices))


def _table(found: FederationStatus) -> Table:
    table = Table()
    for name in ("device", "activity", "in this round", "examples", "model", "software", "problem"):
        table.add_column(name, justify="right" if name == "examples" else "left")
    for name, status in sorted(found.devices.items()):
        activity = status.activity if status.online else "offline"
        out, asked = name in found.quarantined, name in found.asked
        place = "quarantined" if out else "asked" if asked else ""
        model = "" if status.model_round < 0 else f"round {status.model_round + 1}, "
        model += "" if status.model_state == "none" else status.model_state
        cells = (activity, place, str(status.examples), model, status.software, status.problem)
        table.add_row(name, *map(plain, cells))
    return table
