"""MQTT topics of a federation; `mosquitto_sub -t 'fededge/#' -v` shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from fededge.errors import ConfigError, WireError

__all__ = ["NAME_PATTERN", "VERSION_PATTERN", "Address", "Topics", "check_name", "federation_of"]

ROOT = "fededge/v1"
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
"""Device ids and names of federations."""

VERSION_PATTERN = r"[0-9]{6}-[0-9a-f]{16}"
NAME = re.compile(NAME_PATTERN)
VERSION = re.compile(VERSION_PATTERN)
CHUNK = re.compile(r"0|[1-9][0-9]{0,5}")
DEVICE_KINDS = frozenset({"status", "task", "report", "reply", "claim"})


class Address(NamedTuple):
    """A parsed topic: the kind of message, and the device, version and chunk it belongs to."""

    kind: str
    device: str = ""
    version: str = ""
    chunk: int = -1


def check_name(what: str, name: str) -> str:
    """Refuse a federation name or device id that cannot be part of a topic."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{what} '{name[:80]}' must be 1 to 64 letters, digits, '-', '_' or '.', "
            "and begin with a letter or digit"
        )
    return name


def federation_of(topic: str) -> str:
    """The federation of a coordinator's presence, ours or another; empty for any other topic."""
    match topic.removeprefix(f"{ROOT}/").split("/"):
        case [name, "coordinator", "status"] if NAME.fullmatch(name):
            return name
    return ""


@dataclass(frozen=True)
class Topics:
    """The topics of one federation."""

    federation: str

    @property
    def root(self) -> str:
        return f"{ROOT}/{self.federation}"

    @property
    def state(self) -> str:
        return f"{self.root}/state"

    @property
    def coordinator(self) -> str:
        """Parent of the coordinator's own `status` and `claim`."""
        return f"{self.root}/coordinator"

    @property
    def presences(self) -> str:
        """The presences of all federations' coordinators."""
        return f"{ROOT}/+/coordinator/status"

    def model(self, version: str, chunk: int | str = "+") -> str:
        return f"{self.root}/model/{version}/{chunk}"

    def device(self, device: str, kind: str = "") -> str:
        return f"{self.root}/device/{device}/{kind}".rstrip("/")

    def update(self, device: str, version: str, chunk: int | str = "+") -> str:
        return f"{self.root}/device/{device}/update/{version}/{chunk}"

    def device_of(self, topic: str) -> str:
        """The device that a topic belongs to; empty for any other topic."""
        try:
            return self.parse(topic).device
        except WireError:
            return ""

    def parse(self, topic: str) -> Address:
        """Parse a topic of this federation; WireError for any other."""
        head, _, rest = topic.partition(f"{self.root}/")
        parts = rest.split("/") if not head else []
        match parts:
            case ["state"]:
                return Address("state")
            case ["coordinator", ("status" | "claim") as kind]:
                return Address(f"coordinator {kind}")
            case ["model", version, chunk] if VERSION.fullmatch(version) and CHUNK.fullmatch(chunk):
                return Address("model", version=version, chunk=int(chunk))
            case ["device", device, kind] if NAME.fullmatch(device) and kind in DEVICE_KINDS:
                return Address(kind, device)
            case ["device", device, "update", version, chunk] if (
                NAME.fullmatch(device) and VERSION.fullmatch(version) and CHUNK.fullmatch(chunk)
            ):
                return Address("update", device, version, int(chunk))
        raise WireError(f"'{topic[:200]}' is not a topic of federation '{self.federation}'")
