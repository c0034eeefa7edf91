"""An existing mosquitto.conf, and the lines that another run of `fededge init broker` adds to it.

Lines that are there stay: other listeners, a revocation list, an operator's own limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from fededge.broker.mosquitto import FleetSize, bounds, limits
from fededge.errors import ConfigError

__all__ = ["ConfFile", "Listener"]

HEADER = re.compile(r"^# Memory, for .*\n# .* bytes in chunks of .*$", re.MULTILINE)
"""The two lines of comment that name the fleet's size."""


@dataclass
class Listener:
    """A port of the broker with the settings that follow it in the file."""

    port: int
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def tls(self) -> bool:
        return "certfile" in self.settings

    @property
    def asks_for_certificates(self) -> bool:
        return self.settings.get("require_certificate") == "true"


@dataclass
class ConfFile:
    """The text of a mosquitto.conf, the path for errors, and a line for each change."""

    path: Path
    text: str
    said: list[str] = field(default_factory=list)

    @property
    def listeners(self) -> list[Listener]:
        found: list[Listener] = []
        for key, value in self._settings():
            if key in ("listener", "port"):
                found.append(Listener(_port(self.path, value)))
            elif found:
                found[-1].settings[key] = value
        return found

    def get(self, key: str) -> str | None:
        """The value of a setting; None if the file lacks it."""
        return dict(self._settings()).get(key)

    def require(self, key: str, value: str) -> None:
        """Add a setting of the whole broker; refuse a file that has another value."""
        found = self.get(key)
        if found is None:
            self._append(f"{key} {value}")
        elif found != value:
            raise ConfigError(
                f"{self.path}: {key} is '{found}', and these files are for '{value}'; correct the "
                "line, or choose another --out"
            )

    def add_listener(self, port: int, lines: list[str]) -> None:
        if self.get("per_listener_settings") == "true":
            raise ConfigError(
                f"{self.path}: with per_listener_settings every port has rules of its own; add "
                f"port {port} by hand, or choose another --out"
            )
        self.text += "\n".join(["", f"listener {port}", *lines, ""])
        self.said.append(f"added port {port}")

    def add_limits(self) -> None:
        """Add the settings that the file lacks; a newer FedEdge may have more of them."""
        there = {key for key, _ in self._settings()}
        for line in (*bounds(FleetSize()).splitlines(), *limits().splitlines()):
            if not line.startswith("#") and line.split()[0] not in there:
                self._append(line)

    def resize(self, size: FleetSize) -> None:
        """Set the memory limits of another fleet."""
        wanted, before = bounds(size), self.text
        header = HEADER.search(wanted)
        assert header is not None
        self.text = HEADER.sub(header[0], self.text)
        for line in wanted.splitlines():
            if not line.startswith("#"):
                key = line.split()[0]
                self.text = re.sub(rf"^{key}\s.*$", line, self.text, flags=re.MULTILINE)
        if self.text != before:
            self.said.append(f"memory limits are now those of {size.devices} devices")

    def _append(self, line: str) -> None:
        self.text = f"{self.text.rstrip()}\n{line}\n"
        self.said.append(f"added `{line}`")

    def _settings(self) -> list[tuple[str, str]]:
        lines = (line.strip() for line in self.text.splitlines())
        pairs = (line.partition(" ") for line in lines if line and not line.startswith("#"))
        return [(key, value.strip()) for key, _, value in pairs]


def _port(path: Path, value: str) -> int:
    number = value.split()[0] if value else ""
    if not number.isdigit():
        raise ConfigError(f"{path}: 'listener {value}' names no port; correct the line")
    return int(number)
