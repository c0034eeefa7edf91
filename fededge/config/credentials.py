"""Credentials of the service manager: they stand in for the secret files of a configuration.

systemd's `LoadCredential=` reads a file that only root can read, and shows it to one service alone,
below `$CREDENTIALS_DIRECTORY`. A credential has the name of the key whose file it replaces, so the
same configuration serves on a terminal and as a service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from fededge.config.base import Section
from fededge.config.sections import Side

__all__ = ["credential_files", "with_credentials"]

S = TypeVar("S", bound=Side)

CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"

SECTION_KEYS = {
    "": ("signing_key", "trusted_key"),
    "broker": ("ca", "certificate", "key", "password_file"),
    "export": ("signing_key",),
}
"""The keys that name files with credentials, by section; the empty one is the file's top."""


def _sections(config: Side) -> Iterator[tuple[str, Section, tuple[str, ...]]]:
    """Each section that this side has, with its keys."""
    for name, keys in SECTION_KEYS.items():
        section = getattr(config, name, None) if name else config
        if section is not None:
            yield name, section, tuple(key for key in keys if hasattr(section, key))


def _credential(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def credential_files(config: Side) -> dict[str, Path]:
    """The files that a configuration names, by the name of the credential."""
    return {
        _credential(name, key): Path(path)
        for name, section, keys in _sections(config)
        for key in keys
        if (path := getattr(section, key))
    }


def with_credentials(config: S, environment: Mapping[str, str]) -> S:
    """The configuration with the credentials in place of the files that it names."""
    folder = environment.get(CREDENTIALS_VARIABLE)
    if not folder:
        return config
    changes: dict[str, object] = {}
    for name, section, keys in _sections(config):
        paths = {key: Path(folder, _credential(name, key)) for key in keys}
        found = {key: str(path) for key, path in paths.items() if path.is_file()}
        if name and found:
            changes[name] = msgspec.structs.replace(section, **found)
        else:
            changes |= found
    return msgspec.structs.replace(config, **changes)
