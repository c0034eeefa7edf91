"""What mosquitto reads: where it is installed, its configuration, its password file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fededge.errors import ConfigError

__all__ = ["Size", "configuration", "find", "password_file", "password_matches", "service"]

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


MIB = 1 << 20
WINDOW = 2 * MIB
"""Bytes on their way to one client: as many as a sender of ours has on its way to the broker."""

BASE = 64 * MIB
"""What the broker itself takes, and everything small: states, statuses, reports, sessions."""


@dataclass(frozen=True)
class Size:
    """How large a federation is: what its broker has to hold at once follows from it.

    Args:
        devices: how many there are.
        at_once: how many of them send an update at the same time.
        model_bytes: of a model or an update on the wire, the larger one.
        chunk_bytes: of the federation's `[transfer]` section.
    """

    devices: int = 100
    at_once: int = 10
    model_bytes: int = 64 * MIB
    chunk_bytes: int = MIB // 4

    @property
    def queued(self) -> int:
        """Bytes that wait for one client: a round's updates for a coordinator that is away.

        Mosquitto counts payloads, whose chunks have headers.
        """
        return max(BASE, self.at_once * (self.model_bytes * 5 // 4 + self.chunk_bytes))

    @property
    def memory(self) -> int:
        """Bytes of all that is legal at one moment, and a quarter for what is around payloads.

        That is the coordinator's queue, the chunks of the current version and of the next one, and
        for each device a window on its way to it and a chunk on its way from it.
        """
        each = WINDOW + 2 * self.chunk_bytes
        return BASE + (self.queued + 2 * self.model_bytes + self.devices * each) * 5 // 4


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
    port: int,
    passwords: Path | None,
    acl: Path,
    database: Path,
    certificates: Path | None,
    size: Size,
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
    return "\n".join([*lines, _bounds(size), _LIMITS])


def _bounds(size: Size) -> str:
    """Memory that clients can take. Mosquitto counts queues by client, and the rest as a whole."""
    return f"""\
# Memory, for {size.devices} devices of which {size.at_once} send an update at once, and models of
# {size.model_bytes:,} bytes in chunks of {size.chunk_bytes:,}. Other sizes: `fededge init broker`
# with --fleet, --at-once, --model-bytes and --chunk-bytes.
#
# What waits for one client: a round's updates while the coordinator is away. What exceeds it is
# dropped; chunks that were are asked for again.
max_queued_bytes {size.queued}
# What is on its way to one client; a single larger message is let through.
max_inflight_bytes {WINDOW}
# Everything: the queue, two versions of the model, and each device's share. Who sends or retains
# more loses the connection. Mosquitto may end when nothing is left, and starts again as a service.
memory_limit {size.memory}
# Sessions that nobody comes back to; those of coordinators and agents last a day.
persistent_client_expiration 2d
"""


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
