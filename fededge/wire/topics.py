"""The topics of a federation, built and read back: `mosquitto_sub -t 'fededge/#' -v` shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from fededge.errors import ConfigError, WireError

__all__ = ["Address", "Topics", "check_name"]

ROOT = "fededge/v1"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
VERSION = re.compile(r"[0-9]{6}-[0-9a-f]{16}")
CHUNK = re.compile(r"0|[1-9][0-9]{0,5}")
DEVICE_KINDS = frozenset({"status", "task", "report", "reply", "claim"})


class Address(NamedTuple):
    """What a topic says: the kind of message, and the device, version and chunk it belongs to."""

    kind: str
    device: str = ""
    version: str = ""
    chunk: int = -1


def check_name(what: str, name: str) -> str:
    """Federation names and device ids become part of topics: refuse what topics cannot carry."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{what} '{name[:80]}' must be 1 to 64 letters, digits, '-', '_' or '.', "
            "and begin with a letter or digit"
        )
    return name


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
        """Below it lie the coordinator's own `status` and `claim`."""
        return f"{self.root}/coordinator"

    def model(self, version: str, chunk: int | str = "+") -> str:
        return f"{self.root}/model/{version}/{chunk}"

    def device(self, device: str, kind: str = "") -> str:
        return f"{self.root}/device/{device}/{kind}".rstrip("/")

    def update(self, device: str, version: str, chunk: int | str = "+") -> str:
        return f"{self.root}/device/{device}/update/{version}/{chunk}"

    def device_of(self, topic: str) -> str:
        """The device whose topic this is; empty if it is nobody's, or none of this federation."""
        try:
            return self.parse(topic).device
        except WireError:
            return ""

    def parse(self, topic: str) -> Address:
        """Read a topic of this federation; any other is a WireError."""
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
