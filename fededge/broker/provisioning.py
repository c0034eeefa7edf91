"""The files of a closed broker: Mosquitto's configuration, access list and passwords.

An operator's changes to the access list and the passwords are kept: a device that was removed stays
removed when the files are written again.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from fededge.broker import mosquitto as _mosquitto
from fededge.broker.access_list import COORDINATOR, access_list
from fededge.broker.mosquitto import FleetSize
from fededge.errors import ConfigError
from fededge.storage.files import disk_error, read_file, replace_file, write_private
from fededge.wire.topics import check_name

__all__ = ["FleetSize", "write_broker"]

ACCOUNT = "mosquitto"
"""The user that Mosquitto switches to when root starts it, also in Debian's service."""


def write_broker(
    folder: Path,
    federation: str,
    port: int,
    devices: Iterable[str],
    certificates: Path | None,
    size: FleetSize,
) -> None:
    """Write a broker's folder; devices log in with passwords if `devices`, else certificates."""
    check_name("federation", federation)
    devices = list(devices)
    passwords = folder / "passwords" if devices else None
    if certificates is not None:
        certificates = certificates.absolute()
        for name in ("ca.crt", "broker.crt", "broker.key"):
            read_file("--certificates", certificates / name)
    acl, data = folder / "acl", folder / "data"
    _keep_access(acl, federation)
    if passwords is not None:
        _add_users(passwords, folder / "secrets", [COORDINATOR, *devices])
    data.mkdir(mode=0o700, exist_ok=True)
    text = _mosquitto.service(port, passwords, acl, data, certificates, size)
    replace_file(folder / "mosquitto.conf", text.encode())
    _hand_over(folder, certificates)


def _keep_access(path: Path, federation: str) -> None:
    """Write the access list; keep an existing one of this federation, refuse any other."""
    rules = access_list(federation)
    if not path.exists():
        write_private(path, rules.encode())
    elif not path.read_text(encoding="utf-8").startswith(rules):
        raise ConfigError(
            f"{path}: this access list does not begin with the rules of federation "
            f"'{federation}', and may lock out devices; move it away, write it again, and add your "
            "own lines at its end"
        )


def _add_users(passwords: Path, folder: Path, names: Iterable[str]) -> None:
    """Make a random password for each new user: a hash for the broker, the secret in a file.

    The secret is written first, so every user of the broker has a file. A user with a file who is
    missing in the broker's list was removed by the operator.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    kept = passwords.exists()
    lines = passwords.read_text().splitlines(keepends=True) if kept else []
    known = {line.partition(":")[0] for line in lines}
    for name in names:
        if name in known:
            continue
        path = folder / f"{name}.password"
        if kept and path.exists():
            raise ConfigError(
                f"--devices {name}: its line was removed from {passwords} to lock it out; omit it "
                f"here too, or remove {path} to give it a new password"
            )
        if not path.exists():
            write_private(path, f"{secrets.token_urlsafe(24)}\n".encode())
        lines.append(_mosquitto.password_file({name: path.read_text().strip()}))
    write_private(passwords, "".join(lines).encode())


def _hand_over(folder: Path, certificates: Path | None) -> None:
    """Give the broker's account access to its files, if root wrote them, and nobody else.

    Mosquitto switches from root to that account before it opens them, and requires that it owns the
    secret ones. The folder and the users' passwords stay root's.
    """
    if os.geteuid() != 0 or not _exists(ACCOUNT):
        return
    data = folder / "data"
    owned = [folder / "acl", folder / "passwords", data, *data.iterdir()]
    if certificates is not None:
        owned.append(certificates / "broker.key")
    try:
        for path in filter(Path.exists, owned):
            shutil.chown(path, ACCOUNT, ACCOUNT)
        (folder / "mosquitto.conf").chmod(0o644)
        shutil.chown(folder, "root", ACCOUNT)
        folder.chmod(0o750)
    except OSError as error:
        raise disk_error(folder, error) from None


def _exists(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True
