"""The files of a closed broker: Mosquitto's configuration, access list and passwords."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

from fededge.files import read_file, replace_file, write_private
from fededge.transport import _mosquitto
from fededge.transport.access import COORDINATOR, access_list
from fededge.wire.topics import check_name

__all__ = ["write_broker"]


def write_broker(
    folder: Path, federation: str, port: int, devices: Iterable[str], certificates: Path | None
) -> None:
    """Write a broker's folder; with `devices` they show a password, else a certificate."""
    check_name("federation", federation)
    devices = list(devices)
    passwords = folder / "passwords" if devices else None
    if certificates is not None:
        certificates = certificates.absolute()
        for name in ("ca.crt", "broker.crt", "broker.key"):
            read_file("--certificates", certificates / name)
    write_private(folder / "acl", access_list(federation).encode())
    if passwords is not None:
        _add_users(passwords, folder / "secrets", [COORDINATOR, *devices])
    (folder / "data").mkdir(exist_ok=True)
    text = _mosquitto.service(port, passwords, folder / "acl", folder / "data", certificates)
    replace_file(folder / "mosquitto.conf", text.encode())


def _add_users(passwords: Path, folder: Path, names: Iterable[str]) -> None:
    """A random password for each user that has none yet: its hash for the broker, itself in a file.

    The secret is written first: a user that the broker knows has a file.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    lines = passwords.read_text().splitlines(keepends=True) if passwords.exists() else []
    known = {line.partition(":")[0] for line in lines}
    for name in names:
        if name in known:
            continue
        path = folder / f"{name}.password"
        if not path.exists():
            write_private(path, f"{secrets.token_urlsafe(24)}\n".encode())
        lines.append(_mosquitto.password_file({name: path.read_text().strip()}))
    write_private(passwords, "".join(lines).encode())
