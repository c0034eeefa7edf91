"""Mosquitto: finding the program, its configuration and its password file."""

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

__all__ = [
    "FleetSize",
    "bounds",
    "configuration",
    "find",
    "limits",
    "password_file",
    "password_matches",
    "service",
    "tls_lines",
]

# Debian keeps daemons out of an ordinary user's PATH; Homebrew does the same on macOS.
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/home/linuxbrew/.linuxbrew/sbin")

# A fleet's passwords are random, so more iterations do not make guessing harder, and each login
# blocks the broker's only thread: 1000 take about 1 ms.
_ITERATIONS = 1000

# `max_inflight_messages`: mosquitto 2.1 enforces it as a sender's window too. 20 is paho's default.
# 100 was no faster, and took 225 MB instead of 77 MB of memory when 8 devices fetched a retained
# model of 45 MB.
# `max_queued_messages`: messages that wait behind that window. At its default of 1000 mosquitto
# drops the rest of a burst, although it has acknowledged it. Ten devices that each send a model of
# 45 MB send 1710 chunks; 100000 has room for whole rounds.
# `max_packet_size`: 2 MB in mosquitto 2.1, unlimited before. Mosquitto disconnects a client that
# sends more; with `message_size_limit` it would acknowledge the message and then drop it. The
# largest chunk is 16 MB, plus its header and topic.
# `set_tcp_nodelay`: without it a small message waits until the one before it is acknowledged, and
# a round trip takes 88 ms instead of 0.4 ms.
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
"""Bytes in flight to one client: the same window as our outbox's to the broker."""

BASE = 64 * MIB
"""Memory of the broker itself and of all small messages: states, statuses, reports, sessions."""


@dataclass(frozen=True)
class FleetSize:
    """The size of a federation, from which the memory limits of its broker follow.

    Args:
        devices: number of devices.
        at_once: number of devices that send an update at the same time.
        model_bytes: size on the wire of a model or an update, whichever is larger.
        chunk_bytes: `chunk_bytes` of the federation's `[transfer]` section.
    """

    devices: int = 100
    at_once: int = 10
    model_bytes: int = 64 * MIB
    chunk_bytes: int = MIB // 4

    @property
    def queued(self) -> int:
        """Bytes queued for one client: a round's updates while the coordinator is offline.

        Mosquitto counts payloads, which include the chunks' headers.
        """
        return max(BASE, self.at_once * (self.model_bytes * 5 // 4 + self.chunk_bytes))

    @property
    def memory(self) -> int:
        """Bytes that valid traffic can take at one moment, plus a quarter of overhead.

        It is the sum of the coordinator's queue, the chunks of the current and the next version,
        and for each device a window in flight to it and a chunk in flight from it.
        """
        each = WINDOW + 2 * self.chunk_bytes
        return BASE + (self.queued + 2 * self.model_bytes + self.devices * each) * 5 // 4


def find() -> str | None:
    """Path of the mosquitto program, on the PATH or in the usual folders; None if missing."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which("mosquitto", path=os.pathsep.join([path, *_FOLDERS]))


def configuration(
    host: str, port: int, passwords: Path | None, acl: Path | None, database: Path | None
) -> str:
    """The text of mosquitto.conf for a child process."""
    lines = [f"listener {port} {host}", *_access(passwords is None, passwords, acl)]
    return "\n".join([*lines, *_persistence(database), *_user(), _LIMITS])


def service(
    port: int,
    passwords: Path | None,
    acl: Path,
    database: Path,
    certificates: Path | None,
    size: FleetSize,
) -> str:
    """The text of mosquitto.conf for a service that listens on all addresses.

    With `certificates`, the folder of the broker's certificate, it uses TLS. Without passwords it
    then requires a certificate of every client, and the common name in it is the user.
    """
    lines = [f"listener {port}", *_access(False, passwords, acl)]
    lines += tls_lines(certificates, passwords is None)
    # Saved every half hour and at a stop: after a crash the coordinator publishes everything again.
    lines += ["persistence true", f"persistence_location {database}/"]
    return "\n".join([*lines, bounds(size), _LIMITS])


def tls_lines(certificates: Path | None, asks: bool) -> list[str]:
    """A listener's settings for TLS; `asks`: every client needs a certificate of the fleet's CA."""
    if certificates is None:
        return []
    lines = [f"certfile {certificates}/broker.crt", f"keyfile {certificates}/broker.key"]
    if not asks:
        return lines
    required = ["require_certificate true", "use_identity_as_username true"]
    return [*lines, f"cafile {certificates}/ca.crt", *required]


def limits() -> str:
    """The settings that are the same for every fleet."""
    return _LIMITS


def bounds(size: FleetSize) -> str:
    """Memory limits. Mosquitto counts queues per client, and everything else together."""
    return f"""\
# Memory, for {size.devices} devices of which {size.at_once} send an update at once, and models of
# {size.model_bytes:,} bytes in chunks of {size.chunk_bytes:,}. Other sizes: `fededge init broker`
# with --fleet, --at-once, --model-bytes and --chunk-bytes.
#
# Queue of one client: a round's updates while the coordinator is offline. Mosquitto drops messages
# beyond it; dropped chunks are requested again.
max_queued_bytes {size.queued}
# Bytes in flight to one client; a single larger message passes.
max_inflight_bytes {WINDOW}
# All memory: the queue, two versions of the model, and each device's share. Mosquitto disconnects
# a client that exceeds it. It may exit when no memory is left; the service then restarts it.
memory_limit {size.memory}
# Abandoned sessions; those of coordinators and agents last a day.
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
    # Saved on every change, because messages that a client has seen must survive a SIGKILL. The
    # whole file is written each time (45 MB of retained chunks: 5.5 s instead of 0.4 s).
    save = ["autosave_on_changes true", "autosave_interval 1"]
    return ["persistence true", f"persistence_location {database}/", *save]


def _user() -> list[str]:
    # If root starts mosquitto, it switches to the user `mosquitto`, which can neither read the
    # password file nor write the database in a folder of root's. Opening the folder to that account
    # would expose the secrets of a root process, so the broker stays root.
    return ["user root"] if os.geteuid() == 0 else []


def _word(value: bool) -> str:
    return "true" if value else "false"


def password_file(users: Mapping[str, str]) -> str:
    """The text of a password file: PBKDF2 with SHA-512, mosquitto's type 7.

    `mosquitto_passwd -b` writes the same, but exposes the password in the list of processes.
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
    """Return True if `password` matches `stored`, the hash in a line of `password_file`."""
    iterations, salt, digest = stored.removeprefix("$7$").split("$")
    hashed = _digest(password, base64.b64decode(salt), int(iterations))
    return hmac.compare_digest(hashed, base64.b64decode(digest))


def _digest(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
