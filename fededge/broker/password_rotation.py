"""Rotation of a broker's passwords: a box has the new and the old one before the broker changes.

A broker knows one password of a user. So both are in the box's file for a while, the new one first,
and its agent tries the other one when the broker refuses the first.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from fededge.broker import mosquitto as _mosquitto
from fededge.broker.file_owner import hand_over
from fededge.errors import ConfigError
from fededge.storage.files import read_file, write_private

__all__ = ["finish_password", "prepare_password"]


def prepare_password(folder: Path, user: str) -> Path:
    """Make a user's next password; its file, which then holds both, the new one first."""
    path, known = _secret(folder, user)
    if len(known) == 1:
        write_private(path, f"{secrets.token_urlsafe(24)}\n{known[0]}\n".encode())
    return path


def finish_password(folder: Path, user: str) -> str:
    """Let the broker's file know the new password alone; returns it.

    The hash is written first: an interrupted run can be run again.
    """
    path, known = _secret(folder, user)
    if len(known) == 1:
        raise ConfigError(
            f"{path}: there is no new password; make one: fededge rotate password --devices {user}"
        )
    passwords = folder / "passwords"
    lines = read_file("--out", passwords).decode().splitlines()
    line = _mosquitto.password_file({user: known[0]}).strip()
    changed = [line if each.partition(":")[0] == user else each for each in lines]
    write_private(passwords, "".join(f"{each}\n" for each in changed).encode(), same_owner=True)
    write_private(path, f"{known[0]}\n".encode())
    hand_over(folder, None)
    return known[0]


def _secret(folder: Path, user: str) -> tuple[Path, list[str]]:
    """The file of a user's password, with its lines; refuses one that the broker does not know."""
    listed = read_file("--out", folder / "passwords").decode().splitlines()
    path = folder / "secrets" / f"{user}.password"
    if user not in {line.partition(":")[0] for line in listed} or not path.exists():
        raise ConfigError(
            f"'{user}' has no password at the broker of {folder}; see fededge init broker --devices"
        )
    return path, read_file("--out", path).decode().split()
