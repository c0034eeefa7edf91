"""`fededge status`: where a federation stands, as its broker tells anyone who may listen."""

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
from fededge.errors import TransportError, WireError
from fededge.transport.session import Incoming, Session
from fededge.wire.messages import Presence, State, Status, decode
from fededge.wire.topics import Topics

__all__ = ["add_to"]

TEXT = """\
Say where a federation stands: its round, its model, and what each device is doing. It listens to
the retained topics and changes nothing; any configuration file of the federation will do. On the
coordinator's machine it also names who is asked and who is in quarantine: devices are not told.

examples:
  fededge status --config coordinator.toml
  fededge status --config agent.toml --json
  watch fededge status --config coordinator.toml
"""

QUIET = 0.5
"""Seconds without a further message after which all retained ones have come."""


@dataclass
class Picture:
    """What the retained topics say."""

    state: State | None = None
    coordinator: Presence | None = None
    devices: dict[str, Status] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    quarantined: frozenset[str] = frozenset()

    def take(self, topics: Topics, message: Incoming) -> None:
        """Put a message in its place; one that is not of the protocol is passed over."""
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
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    config = load_either(options.config)
    picture = look(config.broker, Topics(config.federation))
    if isinstance(config, CoordinatorConfig):
        picture.asked, picture.quarantined = _roster(Path(config.state))
    if options.json:
        print(json.dumps(_json(config.federation, picture), indent=1))
    else:
        _show(config.federation, picture, Console(highlight=False, markup=False, emoji=False))


def _roster(folder: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Who is asked and who is in quarantine, by the journal; nobody where there is none."""
    from fededge_server.store import Store

    store = Store(folder)
    return store.roster() if store.path.exists() else (frozenset(), frozenset())


def look(broker: BrokerConfig, topics: Topics) -> Picture:
    """Listen until the broker has nothing more to tell."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    session = Session(broker, f"status-{uuid.uuid4().hex[:12]}", inbox)
    for topic in (topics.state, f"{topics.coordinator}/status", topics.device("+", "status")):
        session.subscribe(topic)
    session.start()
    try:
        return _listen(topics, inbox, time.monotonic() + broker.wait)
    finally:
        session.stop()


def _listen(topics: Topics, inbox: queue.SimpleQueue[Any], deadline: float) -> Picture:
    picture = Picture()
    with contextlib.suppress(queue.Empty):
        while time.monotonic() < deadline:
            event = inbox.get(timeout=QUIET)
            if isinstance(event, Incoming):
                picture.take(topics, event)
                event.ack()
    if picture.state is None and picture.coordinator is None and not picture.devices:
        raise TransportError(
            f"the broker knows of no federation '{topics.federation}': start its coordinator, or "
            "correct the name in the configuration"
        )
    return picture


def _json(federation: str, picture: Picture) -> dict[str, Any]:
    state = picture.state
    return {
        "federation": federation,
        "coordinator": bool(picture.coordinator and picture.coordinator.online),
        "state": None if state is None else _brief(state),
        "asked": sorted(picture.asked),
        "quarantined": sorted(picture.quarantined),
        "devices": {name: msgspec.to_builtins(s) for name, s in sorted(picture.devices.items())},
    }


def _brief(state: State) -> dict[str, Any]:
    fields = ["phase", "round", "rounds", "version", "method", "accuracy", "asked", "run"]
    fields += ["encoding", "deadline", "problem", "quarantined", "restored"]
    values: Mapping[str, Any] = msgspec.to_builtins(state)
    return {name: values[name] for name in fields}


def _show(federation: str, picture: Picture, console: Console) -> None:
    state = picture.state
    here = picture.coordinator is not None and picture.coordinator.online
    console.print(f"federation {federation}: coordinator {'online' if here else 'offline'}")
    if state is not None:
        score = "" if state.accuracy is None else f", global accuracy {state.accuracy:.1%}"
        console.print(
            f"{state.phase}: {state.round} of {state.rounds} rounds done, model {state.version}"
            f"{score}; {plain(state.method)}",
            soft_wrap=True,
        )
        if state.phase == "open" or state.quarantined:
            console.print(f"{state.asked} devices are asked, {state.quarantined} in quarantine")
        if state.restored:
            console.print(f"this model is that of version {state.restored}: the run went back")
        if state.problem:
            console.print(plain(state.problem), soft_wrap=True)
    table = Table()
    for name in ("device", "activity", "in this round", "examples", "model", "software", "problem"):
        table.add_column(name, justify="right" if name == "examples" else "left")
    for name, status in sorted(picture.devices.items()):
        activity = status.activity if status.online else "offline"
        out, asked = name in picture.quarantined, name in picture.asked
        place = "quarantined" if out else "asked" if asked else ""
        model = "" if status.model_round < 0 else f"round {status.model_round + 1}, "
        model += "" if status.model_state == "none" else status.model_state
        cells = (activity, place, str(status.examples), model, status.software, status.problem)
        table.add_row(name, *map(plain, cells))
    console.print(table)
