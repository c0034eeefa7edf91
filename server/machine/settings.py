"""The settings of a run that may change while it lasts, and the difference between two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from fededge.config import (
    CoordinatorConfig,
    RobustConfig,
    RolloutConfig,
    RoundsConfig,
    TrainingConfig,
    TransferConfig,
)

__all__ = ["Settings", "at_restart", "edited", "keys_of", "told", "with_keys", "word"]

Keys = Mapping[str, Any]

METHOD = ("method", "files")
"""A method and the files of its plugins change together."""

AT_RESTART = ("rounds.", "rollout", "keep_versions")
"""Keys that an edited file changes at the restart itself, also while a round is open."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The changeable part of a coordinator's configuration.

    `files`: the SHA-256 of the file of each plugin in `method`.
    """

    method: str = "fedavg"
    files: dict[str, str] = {}
    training: TrainingConfig = TrainingConfig()
    transfer: TransferConfig = TransferConfig()
    rounds: RoundsConfig = RoundsConfig()
    robust: RobustConfig = RobustConfig()
    rollout: RolloutConfig | None = None
    keep_versions: int = 10

    @property
    def job(self) -> tuple[object, ...]:
        """The part that devices train by: with another one, a new version begins."""
        return self.method, self.files, self.training, self.transfer

    def put_into(self, config: CoordinatorConfig) -> CoordinatorConfig:
        """This configuration with these settings."""
        values = msgspec.structs.asdict(self)
        del values["files"]
        return msgspec.structs.replace(config, **values)


def keys_of(settings: Settings) -> dict[str, Any]:
    """The settings key by key, named as in the file; the rollout is one key."""
    found: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(settings).items():
        if isinstance(value, Struct) and name != "rollout":
            section = msgspec.structs.asdict(value)
            found |= {f"{name}.{key}": one for key, one in section.items()}
        else:
            found[name] = value
    return found


def edited(before: Settings, after: Settings) -> dict[str, Any]:
    """The keys that differ, with their new values."""
    old, new = keys_of(before), keys_of(after)
    found = {key: value for key, value in new.items() if value != old[key]}
    return {**found, **{key: new[key] for key in METHOD if found.keys() & {*METHOD}}}


def at_restart(key: str) -> bool:
    """True if an edited file changes the key at the restart itself."""
    return key.startswith(AT_RESTART)


def with_keys(
    settings: Settings, values: Keys, wanted: Callable[[str], bool] = lambda _: True
) -> Settings:
    """The settings with other values for the wanted keys."""
    whole: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        if not wanted(key):
            continue
        if name:
            part = whole.get(section, getattr(settings, section))
            whole[section] = msgspec.structs.replace(part, **{name: value})
        else:
            whole[section] = value
    return msgspec.structs.replace(settings, **whole)


def told(before: Settings, after: Settings) -> str:
    """The difference in one line: every key with its old and its new value."""
    old, new = keys_of(before), keys_of(after)
    return "; ".join(f"{k}: {word(old[k])} -> {word(new[k])}" for k in new if new[k] != old[k])


def word(value: object) -> str:
    """A value as a person reads it."""
    if isinstance(value, Struct):
        return ", ".join(f"{k} {word(v)}" for k, v in msgspec.structs.asdict(value).items())
    if isinstance(value, tuple):
        return f"[{', '.join(map(word, value))}]"
    if isinstance(value, dict):
        return ", ".join(f"{name} {sha256[:12]}" for name, sha256 in value.items()) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value in (None, "") else str(value)
