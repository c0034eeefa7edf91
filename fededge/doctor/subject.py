"""The subject of an examination: a configuration, the box, and what the broker has told."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fededge.config import AgentConfig, Side
from fededge.transport.probing import Probing, Welcome
from fededge.wire.messages import Presence, State, Status
from fededge.wire.topics import Topics

__all__ = ["Box", "Subject"]


@dataclass(frozen=True)
class Box:
    """The operating system as the checks ask it, and how long they wait for any answer."""

    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.perf_counter
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    timeout: float = 3.0


@dataclass
class Subject:
    """A configuration under examination; the broker's checks fill in the rest.

    Args:
        path: the configuration's file.
        config: of either side.
        deep: also send and receive chunks.
        box: the operating system.
        line: the connection that the checks of the broker share.
        welcome: the broker's answer on it.
        state: the federation's retained state.
        presence: the coordinator's.
        status: the device's own.
    """

    path: Path
    config: Side
    deep: bool = False
    box: Box = field(default_factory=Box)
    line: Probing | None = None
    welcome: Welcome | None = None
    state: State | None = None
    presence: Presence | None = None
    status: Status | None = None

    @property
    def topics(self) -> Topics:
        return Topics(self.config.federation)

    @property
    def name(self) -> str:
        """The user name that a closed broker knows this side by."""
        from fededge.broker.access_list import COORDINATOR

        return self.config.device if isinstance(self.config, AgentConfig) else COORDINATOR

    @property
    def folder(self) -> Path:
        """The folder whose lock a running service holds."""
        state = Path(self.config.state)
        return state / "private" if isinstance(self.config, AgentConfig) else state

    @property
    def values(self) -> dict[str, Any]:
        """Values for the fixes."""
        broker = self.config.broker
        return {
            "config": self.path,
            "host": broker.host,
            "port": broker.port,
            "ca": broker.ca or "the file that [broker] ca names",
            "name": self.name,
            "federation": self.config.federation,
            "folder": self.config.state,
        }
