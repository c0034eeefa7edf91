"""What mosquitto reads: where it is installed, its configuration, its password file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from fededge.errors import ConfigError

__all__ = ["configuration", "find", "password_file", "password_matches", "service"]

# Debian keeps daemons out of an ordinary user's PATH; Homebrew does the same on macOS.
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/home/linuxbrew/.linuxbrew/sbin")

# Passwords of a fleet are random, so iterations add nothing against guessing, and each login
# holds up the broker's only thread: 1000 cost about 1 ms.
_ITERATIONS = 1000

# `max_inflight_messages` is also what mosquitto 2.1 enforces as the window of a sender: 20 is what
# paho uses by default. 100 was no faster and took 225 MB instead of 77 MB of memory when 8 devices
# fetched a retained model of 45 MB. `max_queued_messages` counts what waits behind that window; at
# its default of 1000 the rest of a burst is dropped though its sender was told that it arrived, and
# ten devices that answer with a model of 45 MB send 1710 chunks: 100000 lets whole rounds wait.
# `max_packet_size` is 2 MB in mosquitto 2.1 and unlimited before. It breaks the connection of a
# client that sends more; `message_size_limit` would acknowledge the message and then drop it. The
# largest chunk, of 16 MB, has a header and a topic besides.
# Without `set_tcp_nodelay` a small message waits until the one before it is acknowledged: a round
# trip takes 88 ms instead of 0.4 ms.
_LIMITS = """\
set_tcp_nodelay true
max_inflight_messages 20
max_queued_messages 100000
max_packet_size 17825792
sys_interval 0
log_dest stderr
log_type error
log_type warning
log_type notice
log_timestamp_format %Y-%m-%dT%H:%M:%S
"""


def find() -> str | None:
    """The mosquitto program, on the PATH or where packages put it."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which("mosquitto", path=os.pathsep.join([path, *_FOLDERS]))


def configuration(
    host: str, port: int, passwords: Path | None, acl: Path | None, database: Path | None
) -> str:
    """The text of a mosquitto.conf for a child process of ours."""
    lines = [f"listener {port} {host}", *_access(passwords is None, passwords, acl)]
    return "\n".join([*lines, *_persistence(database), *_user(), _LIMITS])


def service(
    port: int, passwords: Path | None, acl: Path, database: Path, certificates: Path | None
) -> str:
    """The text of a mosquitto.conf for a service that listens on all addresses.

    With `certificates`, the folder of the broker's own, it speaks TLS; without passwords it then
    asks every client for a certificate, and takes the common name in it as the user.
    """
    lines = [f"listener {port}", *_access(False, passwords, acl)]
    if certificates is not None:
        lines += [f"certfile {certificates}/broker.crt", f"keyfile {certificates}/broker.key"]
        if passwords is None:
            asks = ["require_certificate true", "use_identity_as_username true"]
            lines += [f"cafile {certificates}/ca.crt", *asks]
    # Once every half hour, and at a stop: after a crash the coordinator publishes all anew.
    lines += ["persistence true", f"persistence_location {database}/"]
    return "\n".join([*lines, _LIMITS])


def _access(anonymous: bool, passwords: Path | None, acl: Path | None) -> list[str]:
    lines = [f"allow_anonymous {_word(anonymous)}"]
    if passwords is not None:
        lines.append(f"password_file {passwords}")
    if acl is not None:
        lines.append(f"acl_file {acl}")
    return lines


def _persistence(database: Path | None) -> list[str]:
    if database is None:
        return ["persistence false"]
    # On every change, not once a second: what a client has seen must be there after a SIGKILL. The
    # whole file is written each time (45 MB of retained chunks: 5.5 s instead of 0.4 s).
    save = ["autosave_on_changes true", "autosave_interval 1"]
    return ["persistence true", f"persistence_location {database}/", *save]


def _user() -> list[str]:
    # Started by root, mosquitto becomes the user `mosquitto`, who can neither read the password
    # file nor write the database in a folder that only root may enter. Giving that account the
    # folder would show it the secrets of a process that runs as root; so the broker stays root.
    return ["user root"] if os.geteuid() == 0 else []


def _word(value: bool) -> str:
    return "true" if value else "false"


def password_file(users: Mapping[str, str]) -> str:
    """The text of a password file: PBKDF2 with SHA-512, mosquitto's type 7.

    `mosquitto_passwd -b` writes the same, but shows the password to everybody who lists processes.
    """
    return "".join(f"{_checked(name)}:{_hashed(users[name])}\n" for name in users)


def _checked(name: str) -> str:
    if name != name.strip() or name[:1] in ("", "#") or any(c in name for c in ":\r\n\0"):
        raise ConfigError(
            f"broker user {name!r}: a user name must not be empty, begin with '#', begin or end "
            "with a space, or contain ':' or a line break"
        )
    return name


def _hashed(password: str) -> str:
    salt = secrets.token_bytes(12)
    fields = ["7", str(_ITERATIONS), _text(salt), _text(_digest(password, salt, _ITERATIONS))]
    return "$" + "$".join(fields)


def password_matches(password: str, stored: str) -> bool:
    """Whether `password` is the one behind what follows the name in a line of `password_file`."""
    iterations, salt, digest = stored.removeprefix("$7$").split("$")
    given = _digest(password, base64.b64decode(salt), int(iterations))
    return hmac.compare_digest(given, base64.b64decode(digest))


def _digest(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
