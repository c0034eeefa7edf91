"""The settings that a start goes by: what the journal has in force, and what the file says since.

A key that was edited in the file since the last start is a change that is ordered. For all other
keys the journal counts, whatever the file says.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from fededge import methods
from fededge.config import (
    CoordinatorConfig,
    RobustConfig,
    TrainingConfig,
    TransferConfig,
    check_run,
)
from fededge.errors import ConfigError
from fededge.method.base import State
from fededge.method.stack import Stack
from fededge_server.machine.settings import (
    Settings,
    at_restart,
    edited,
    keys_of,
    told,
    with_keys,
    word,
)
from fededge_server.store import Progress, Role, Store

__all__ = ["agree", "begins_anew", "begun_settings", "settings_of"]

log = logging.getLogger("coordinator")


def settings_of(config: CoordinatorConfig) -> Settings:
    """The settings that a configuration has; its method is imported."""
    method = methods.method(config.method)
    return Settings(
        method=config.method if method.files else str(method),
        files=dict(method.files),
        training=config.training,
        transfer=config.transfer,
        rounds=config.rounds,
        robust=config.robust,
        rollout=config.rollout,
        keep_versions=config.keep_versions,
    )


def agree(
    store: Store, config: CoordinatorConfig, progress: Progress | None, date: float
) -> Settings:
    """The settings in force at a start; what the file has changed since is ordered.

    Raises:
        ConfigError: the file of a plugin has changed, or the settings do not fit each other.
    """
    file = settings_of(config)
    if progress is None:
        store.put_settings({Role.IN_FORCE: file, Role.FILE: file}, date, 0)
        return file
    found = store.settings()
    now = found.get(Role.IN_FORCE) or begun_settings(store.begun_with(), file)
    before = found.get(Role.FILE, now)
    changed = edited(before, file)
    at_once = with_keys(now, changed, at_restart)
    wanted = with_keys(found.get(Role.ORDERED, now), changed)
    ordered = None if wanted == at_once else wanted
    for settings in (at_once, *([ordered] if ordered else [])):
        _check_files(store.folder, settings)
        check_run(settings.put_into(config))
    what = told(now, at_once)
    roles = {Role.IN_FORCE: at_once, Role.ORDERED: ordered, Role.FILE: file}
    if roles != {Role.ORDERED: None, **found}:
        store.put_settings(roles, date, progress.rounds_done, what)
    _tell(at_once, ordered, file, changed)
    return at_once


def _tell(
    now: Settings, ordered: Settings | None, file: Settings, changed: Mapping[str, object]
) -> None:
    """Log the keys that the file changes, and those that it does not have as they are."""
    for key in changed:
        when = "now" if at_restart(key) else "from the next round that begins on"
        log.info("setting %s: %s, %s", key, word(changed[key]), when)
    last, told_by = keys_of(ordered or now), keys_of(file)
    others = [key for key in last if last[key] != told_by[key]]
    if others:
        said = ", ".join(f"{key} = {word(last[key])}" for key in others)
        log.info("settings were applied that the file does not have: copy into it %s", said)


def _check_files(folder: Path, settings: Settings) -> None:
    """Refuse a plugin whose file is not the one that the settings name."""
    files = methods.method(settings.method).files
    for name, sha256 in settings.files.items():
        if files.get(name) != sha256:
            raise ConfigError(
                f"{folder}: this run was begun with file of {name} = {sha256}, the configuration "
                f"now says file of {name} = {files.get(name)}; put it back, and give the changed "
                "file another name: `fededge apply` can change to that"
            )


def begun_settings(facts: Mapping[str, str], file: Settings) -> Settings:
    """The settings of a run that an earlier version of FedEdge began, as far as it noted them."""
    files = {n.removeprefix("file of "): v for n, v in facts.items() if n.startswith("file of ")}
    method = facts.get("method", file.method)
    if str(methods.method(file.method)) == method:
        method = file.method
    transfer = {
        "encoding": facts.get("encoding", file.transfer.encoding),
        "chunk_bytes": facts.get("transfer.chunk_bytes", file.transfer.chunk_bytes),
    }
    return msgspec.structs.replace(
        file,
        method=method,
        files=files,
        transfer=msgspec.convert(transfer, TransferConfig, strict=False),
        training=_begun_section(facts, "training", file.training, TrainingConfig),
        robust=_begun_section(facts, "robust", file.robust, RobustConfig),
    )


S = TypeVar("S", TrainingConfig, RobustConfig)


def _begun_section(facts: Mapping[str, str], name: str, file: S, kind: type[S]) -> S:
    """A section as the facts have it, where they were written as text; else as the file has it."""
    known = {key.removeprefix(f"{name}."): v for key, v in facts.items() if key.startswith(name)}
    known = {key: v.lower() if v in ("True", "False") else v for key, v in known.items()}
    return msgspec.convert({**msgspec.structs.asdict(file), **known}, kind, strict=False)


def begins_anew(old: Stack, new: Stack, state: State, fresh: State) -> bool:
    """True if the method's own state is of no use to the new one: other layers, or other state."""
    names = [layer.name for layer in old.layers] == [layer.name for layer in new.layers]
    shapes = {n: v.shape for n, v in state.items()} == {n: v.shape for n, v in fresh.items()}
    return not names or old.files != new.files or not shapes
