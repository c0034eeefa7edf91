"""Mosquitto's dynamic security plugin, for one thing: to shut a user out of a running broker.

The access list and the passwords stay in their files. Mosquitto reads those again on SIGHUP, which
cuts off nobody who is connected, and which version 2.0.11 may not survive (docs/security.md). A
message to the plugin shuts a user out at once, and the plugin writes that down itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

__all__ = [
    "ANSWER",
    "CONTROL",
    "FILE",
    "admission",
    "complaints",
    "denial",
    "find_plugin",
    "initial_file",
    "new_password",
    "plugin_lines",
    "question",
]

CONTROL = "$CONTROL/dynamic-security/v1"
ANSWER = f"{CONTROL}/response"
FILE = "dynamic-security.json"
"""The plugin's own file, in the broker's folder of data."""

REVOKED = "revoked"
"""The role that denies every topic."""

NAME = "mosquitto_dynamic_security.so"
FOLDERS = ("/usr/lib", "/usr/local/lib", "/usr/lib64", "/opt/homebrew/lib")

IN_ORDER = {"Client already exists"}
"""Answers that say that it was done before."""


def find_plugin(folders: tuple[str, ...] = FOLDERS) -> Path | None:
    """The plugin of this machine's Mosquitto; None if it has none."""
    return next(_candidates(folders), None)


def _candidates(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from filter(Path.is_file, [Path(folder, NAME), *Path(folder).glob(f"*/{NAME}")])


def plugin_lines(plugin: Path, data: Path) -> dict[str, str]:
    """The settings that load it."""
    return {"plugin": str(plugin), "plugin_opt_config_file": str(data / FILE)}


def initial_file() -> bytes:
    """The plugin's file of a broker that has shut nobody out; it leaves all others to the ACL."""
    kinds = ("publishClientSend", "publishClientReceive", "subscribe", "unsubscribe")
    filters = ("publishClientSend", "publishClientReceive", "subscribePattern")
    rules = [{"acltype": kind, "topic": "#", "priority": 0, "allow": False} for kind in filters]
    content = {
        "defaultACLAccess": dict.fromkeys(kinds, False),
        "roles": [{"rolename": REVOKED, "acls": rules}],
        "clients": [],
        "groups": [],
    }
    return json.dumps(content, indent=2).encode()


def denial(user: str, token: str = "") -> bytes:
    """The message that cuts a user's connections and lets it do nothing any more.

    The answer repeats the token.
    """
    return _message(
        token,
        {"command": "createClient", "username": user},
        {"command": "removeClientRole", "username": user, "rolename": REVOKED},  # it has one once
        {"command": "addClientRole", "username": user, "rolename": REVOKED},
        {"command": "disableClient", "username": user},
    )


def admission(user: str, token: str = "") -> bytes:
    """The message that takes a denial back. A password that the plugin has stays."""
    return _message(
        token,
        {"command": "createClient", "username": user},
        {"command": "removeClientRole", "username": user, "rolename": REVOKED},
        {"command": "enableClient", "username": user},
    )


def new_password(user: str, password: str, token: str = "") -> bytes:
    """The message that sets a user's password, in place of that in the broker's file."""
    return _message(
        token,
        {"command": "createClient", "username": user},
        {"command": "setClientPassword", "username": user, "password": password},
    )


def question(token: str = "") -> bytes:
    """A message that changes nothing: an answer shows that the plugin is there."""
    return _message(token, {"command": "getDefaultACLAccess"})


def _message(token: str, *commands: dict[str, object]) -> bytes:
    known = [{**each, "correlationData": token} for each in commands]
    return msgspec.json.encode({"commands": known})


def complaints(answer: bytes, token: str = "") -> list[str] | None:
    """The things that the plugin could not do; None if this is not its answer to our message."""
    try:
        found = msgspec.json.decode(answer, type=dict[str, list[dict[str, object]]])["responses"]
    except (msgspec.DecodeError, KeyError, RecursionError):
        return None
    if not found or any(each.get("correlationData", "") != token for each in found):
        return None
    errors = [str(each["error"]) for each in found if "error" in each]
    return [error for error in errors if error not in IN_ORDER]
