"""The files of a closed broker: Mosquitto's configuration, access list and passwords.

Written again, the files keep all that is in them and gain what is new. An operator's changes stay:
a device that was shut out stays out, a port stays open, another federation keeps its rules.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fededge.broker import mosquitto as _mosquitto
from fededge.broker.access_list import COORDINATOR, denied_users, missing_rules, with_rules
from fededge.broker.conf_file import ConfFile
from fededge.broker.dynamic_security import FILE, find_plugin, initial_file, plugin_lines
from fededge.broker.file_owner import CERTIFICATES, KEY, hand_over
from fededge.broker.mosquitto import FleetSize
from fededge.errors import ConfigError
from fededge.storage.files import read_file, replace_file, write_private
from fededge.wire.topics import check_name

__all__ = ["PLAIN_PORT", "TLS_PORT", "BrokerPlan", "FleetSize", "write_broker"]

TLS_PORT, PLAIN_PORT = 8883, 1883


@dataclass(frozen=True)
class BrokerPlan:
    """An operator's request for a broker's folder.

    Args:
        folder: the broker's folder.
        federation: gets its rules in the access list.
        devices: users with a password; without any, a new broker asks for certificates.
        certificates: the absolute folder of `fededge init certificates`, for TLS.
        port: of the listener; None: the one that is there, or the usual one.
        size: the fleet whose memory limits a new file has.
        resized: also set them in a file that is there.
    """

    folder: Path
    federation: str
    devices: tuple[str, ...]
    certificates: Path | None
    port: int | None
    size: FleetSize
    resized: bool

    @property
    def users(self) -> tuple[str, ...]:
        return (COORDINATOR, *self.devices) if self.devices else ()


def write_broker(plan: BrokerPlan) -> list[str]:
    """Write what a broker's folder lacks; return a line for each thing made, changed or kept."""
    check_name("federation", plan.federation)
    if plan.certificates is not None:
        for name in (*CERTIFICATES, KEY):
            read_file("--certificates", plan.certificates / name)
    conf = _conf(plan)  # refuses what cannot be added before anything is written
    said = _add_rules(plan.folder / "acl", plan.federation)
    if plan.users:
        said += _add_users(plan.folder, plan.users)
    (plan.folder / "data").mkdir(mode=0o700, exist_ok=True)
    said += _add_plugin(conf, plan.folder / "data")
    if not conf.path.exists() or conf.text != conf.path.read_text(encoding="utf-8"):
        replace_file(conf.path, conf.text.encode())
    said += [f"{conf.path.name}: {line}" for line in conf.said]
    return said + hand_over(plan.folder, plan.certificates)


# The access list


def _add_rules(path: Path, federation: str) -> list[str]:
    """Add the rules of a federation and keep all others; return what was done, with the denials."""
    before = _text(path)
    count = len(missing_rules(before, federation))
    if count:
        write_private(path, with_rules(before, federation).encode())
    done = f"added {count} rules" if count else "kept the rules"
    denials = [f"acl: kept the denial of {user}" for user in denied_users(before)]
    return [f"acl: {done} of federation '{federation}'", *denials]


def _text(path: Path) -> str:
    if not path.exists():
        return ""
    try:
        return read_file("--out", path).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"--out: '{path}' is not a text file; move it away") from None


# Passwords


def _add_users(folder: Path, names: Iterable[str]) -> list[str]:
    """Make a random password for each new user: a hash for the broker, the secret in a file.

    The secret is written first, so every user of the broker has a file.
    """
    passwords, store = folder / "passwords", folder / "secrets"
    _check_list(passwords, store, folder / "mosquitto.conf")
    store.mkdir(mode=0o700, exist_ok=True)
    before, denied = _text(passwords), denied_users(_text(folder / "acl"))
    text, said = before, []
    for name in names:
        path = store / f"{name}.password"
        state = _standing(name, before, denied, path, passwords.exists())
        if not state:
            text += _new_line(name, path)
            state = f"added {name}, with its password in {path}"
        said.append(f"passwords: {state}")
    if text != before:
        write_private(passwords, text.encode())
    return said


def _standing(name: str, text: str, denied: list[str], path: Path, listed: bool) -> str:
    """Describe a user that the broker knows or has locked out; empty for a new user.

    A user with a secret who is missing in the broker's list was removed by the operator.
    """
    known = {line.partition(":")[0].replace(" ", "") for line in text.splitlines()}
    if name in denied:
        return f"{name} stays locked out: acl denies it"
    if f"#{name}" in known:
        return f"{name} stays locked out: its line is commented out"
    if name in known:
        return f"kept {name}"
    if listed and path.exists():
        return f"{name} stays locked out: its line was removed; for a new password: rm {path}"
    return ""


def _check_list(passwords: Path, store: Path, conf: Path) -> None:
    """Refuse to rebuild a lost password list, which also recorded the users that are locked out."""
    if conf.exists() and any(store.glob("*.password")) and not passwords.exists():
        raise ConfigError(
            f"{passwords}: it is gone, and nothing else tells who was locked out; restore it, or "
            f"remove {store} to give every user a new password"
        )


def _new_line(name: str, path: Path) -> str:
    """The line of a user; a password that an interrupted run has left is used."""
    if not path.exists():
        write_private(path, f"{secrets.token_urlsafe(24)}\n".encode())
    return _mosquitto.password_file({name: path.read_text().strip()})


# mosquitto.conf


def _conf(plan: BrokerPlan) -> ConfFile:
    """The configuration with what the plan adds; it is not written yet."""
    path = plan.folder / "mosquitto.conf"
    conf = ConfFile(path, _text(path))
    if not conf.text:
        return _new_conf(plan, path)
    conf.require("acl_file", str(plan.folder / "acl"))
    if plan.users:
        conf.require("password_file", str(plan.folder / "passwords"))
    _keep_ports(conf, plan)
    if plan.resized:
        conf.resize(plan.size)
    conf.add_limits()
    return conf


def _add_plugin(conf: ConfFile, data: Path) -> list[str]:
    """Load the plugin that shuts a revoked device out; keep a file of it that is there."""
    plugin = find_plugin()
    if conf.get("plugin") is None and plugin is not None:
        for key, value in plugin_lines(plugin, data).items():
            conf.require(key, value)
    if conf.get("plugin_opt_config_file") == str(data / FILE) and not (data / FILE).exists():
        write_private(data / FILE, initial_file())
    if conf.get("plugin") is not None:
        return []
    return [
        "mosquitto.conf: this machine has no dynamic security plugin of Mosquitto: to shut a "
        "device out, the broker must be restarted"
    ]


def _new_conf(plan: BrokerPlan, path: Path) -> ConfFile:
    folder, tls = plan.folder, plan.certificates
    port = plan.port or (PLAIN_PORT if tls is None else TLS_PORT)
    passwords = folder / "passwords" if plan.users else None
    text = _mosquitto.service(port, passwords, folder / "acl", folder / "data", tls, plan.size)
    way = "certificates" if passwords is None else "passwords"
    secured = "TLS" if tls is not None else "not encrypted"
    return ConfFile(path, text, [f"made, with port {port} ({secured}, {way})"])


def _keep_ports(conf: ConfFile, plan: BrokerPlan) -> None:
    """Keep every port; add the plan's, if it names another or the first one with TLS."""
    there = conf.listeners
    conf.said += [f"kept port {each.port}" for each in there]
    wanted = plan.port
    if wanted is None:
        fitting = [each for each in there if each.tls or plan.certificates is None]
        wanted = fitting[0].port if fitting else TLS_PORT
    same = next((each for each in there if each.port == wanted), None)
    if same is None:
        conf.add_listener(wanted, _mosquitto.tls_lines(plan.certificates, not plan.users))
        return
    if plan.users and same.asks_for_certificates:
        raise ConfigError(
            f"{conf.path}: port {wanted} asks for certificates, so a password opens nothing there; "
            "give --port another number for logins with passwords, or omit --devices"
        )
    used = Path(same.settings.get("certfile", "")).parent
    if plan.certificates is not None and used != plan.certificates:
        raise ConfigError(
            f"{conf.path}: port {wanted} has its certificate from '{used}', not from "
            f"'{plan.certificates}'; correct its certfile, keyfile and cafile"
        )
