"""The files of a closed broker: Mosquitto's configuration, access list and passwords.

What an operator has changed in the access list and the passwords is kept: a device that was shut
out stays out, however often the files are written.
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
from fededge.broker.mosquitto import Size
from fededge.errors import ConfigError
from fededge.storage.files import disk_error, read_file, replace_file, write_private
from fededge.wire.topics import check_name

__all__ = ["Size", "write_broker"]

ACCOUNT = "mosquitto"
"""The user that Mosquitto becomes when root starts it, and the one of Debian's service."""


def write_broker(
    folder: Path,
    federation: str,
    port: int,
    devices: Iterable[str],
    certificates: Path | None,
    size: Size,
) -> None:
    """Write a broker's folder; with `devices` they show a password, else a certificate."""
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
    """The access list; what was added to one of this federation stays, another one is refused."""
    rules = access_list(federation)
    if not path.exists():
        write_private(path, rules.encode())
    elif not path.read_text(encoding="utf-8").startswith(rules):
        raise ConfigError(
            f"{path}: this access list does not begin with the rules of federation "
            f"'{federation}', and may shut out devices; move it away, write it anew, and add your "
            "own lines again at its end"
        )


def _add_users(passwords: Path, folder: Path, names: Iterable[str]) -> None:
    """A random password for each user that has none yet: its hash for the broker, itself in a file.

    The secret is written first: a user that the broker knows has a file. One with a file whom the
    broker does not know was shut out.
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
                f"--devices {name}: its line is gone from {passwords}, it was shut out; leave it "
                f"out here too, or remove {path} to give it a new password"
            )
        if not path.exists():
            write_private(path, f"{secrets.token_urlsafe(24)}\n".encode())
        lines.append(_mosquitto.password_file({name: path.read_text().strip()}))
    write_private(passwords, "".join(lines).encode())


def _hand_over(folder: Path, certificates: Path | None) -> None:
    """Let the broker's own account read what it needs, where root writes the files; nobody else.

    Mosquitto started by root becomes that account before it opens any of them. It wants to own what
    is secret; the folder stays root's, and so do the passwords of the users.
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
