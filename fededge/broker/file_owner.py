"""The owner of a broker's files: the user that Mosquitto becomes must be able to read them."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
from pathlib import Path

from fededge.storage.files import disk_error

__all__ = ["ACCOUNT", "CERTIFICATES", "KEY", "hand_over"]

CERTIFICATES, KEY = ("ca.crt", "broker.crt"), "broker.key"
"""The files of a broker with TLS, in the folder of certificates."""

ACCOUNT = "mosquitto"
"""The user that Mosquitto switches to when root starts it, also in Debian's service."""


def hand_over(folder: Path, certificates: Path | None) -> list[str]:
    """Give the broker's account access to its files, if root wrote them, and nobody else.

    Mosquitto switches from root to that account before it opens them, and requires that it owns the
    secret ones. The folder and the users' passwords stay root's. Returns a line for each obstacle.
    """
    if not _exists(ACCOUNT):
        return []
    if os.geteuid() != 0:
        return [
            f"these files are {pwd.getpwuid(os.geteuid()).pw_name}'s: start the broker as this "
            "user; for a service that root starts, run this command again with sudo"
        ]
    try:
        _change_owners(folder, certificates)
    except OSError as error:
        raise disk_error(folder, error) from None
    return _closed_parents(folder, certificates)


def _change_owners(folder: Path, certificates: Path | None) -> None:
    data = folder / "data"
    owned = [folder / "acl", folder / "passwords", data, *data.iterdir()]
    if certificates is not None:
        owned.append(certificates / KEY)
        _open_certificates(certificates)
    for path in filter(Path.exists, owned):
        shutil.chown(path, ACCOUNT, ACCOUNT)
    (folder / "mosquitto.conf").chmod(0o644)
    shutil.chown(folder, "root", ACCOUNT)
    folder.chmod(0o750)


def _open_certificates(folder: Path) -> None:
    """Let the account enter a folder that a strict umask has closed; every key in it has 0600."""
    for name in CERTIFICATES:
        (folder / name).chmod(0o644)
    if not _enters(folder):
        shutil.chown(folder, group=ACCOUNT)
        folder.chmod(folder.stat().st_mode | 0o010)


def _closed_parents(folder: Path, certificates: Path | None) -> list[str]:
    above = {*folder.absolute().parents}
    if certificates is not None:
        above |= {*certificates.absolute().parents}
    return [
        f"{path}: the user {ACCOUNT} cannot enter this folder, so a broker that root starts cannot "
        f"read its files; move them, for instance to /etc/fededge, or: chmod o+x {path}"
        for path in sorted(above)
        if not _enters(path)
    ]


def _enters(folder: Path) -> bool:
    """True if the account may enter a folder."""
    found, account = folder.stat(), pwd.getpwnam(ACCOUNT)
    groups = {account.pw_gid, *(g.gr_gid for g in grp.getgrall() if ACCOUNT in g.gr_mem)}
    if found.st_uid == account.pw_uid:
        return bool(found.st_mode & 0o100)
    return bool(found.st_mode & (0o010 if found.st_gid in groups else 0o001))


def _exists(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True
