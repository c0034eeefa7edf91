"""The files of a systemd service: the units of the package, fitted to this machine."""

from __future__ import annotations

import importlib.resources
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Role", "ServiceUnit", "UnitFile", "service_state"]

Role = Literal["coordinator", "agent"]

ROLES: tuple[Role, ...] = ("coordinator", "agent")

PACKAGES = {"coordinator": "fededge_server", "agent": "fededge_agent"}
PACKAGED_PROGRAM = "/usr/bin/fededge"

SYSTEM_UNITS, SYSTEM_USERS = Path("/etc/systemd/system"), Path("/etc/sysusers.d/fededge.conf")

BACKOFF_SINCE = 254
BACKOFF_KEYS = ("RestartSteps", "RestartMaxDelaySec")
"""Keys that an older systemd does not know, and warns about at every reload."""

USER_KEYS = frozenset(
    (
        *("Description", "StartLimitIntervalSec", "Type", "NotifyAccess", "ExecStart"),
        *("TimeoutStartSec", "TimeoutStopSec", "WatchdogSec", "Restart", "RestartSec"),
        *(*BACKOFF_KEYS, "OOMPolicy", "UMask", "NoNewPrivileges"),
    )
)
"""Keys that also work in a user's own manager, which has no privileges to give up."""

USER_HEAD = "# The FedEdge {role} as a service of one user. `fededge install-service` writes it."


@dataclass(frozen=True)
class UnitFile:
    """A file that belongs to a service."""

    path: Path
    text: str


@dataclass(frozen=True)
class ServiceUnit:
    """One service: its names, and its files.

    `user_folder` is the folder of configurations of the user whose service it is; None: it is a
    service of the system.
    """

    role: Role
    instance: str = ""
    user_folder: Path | None = None

    @property
    def name(self) -> str:
        """The name for systemctl."""
        return f"fededge-{self.role}" + (f"@{self.instance}" if self.instance else "")

    @property
    def config(self) -> Path:
        """Where the service looks for its configuration."""
        folder = Path("/etc") if self.user_folder is None else self.user_folder
        return folder / "fededge" / self.instance / f"{self.role}.toml"

    @property
    def state(self) -> Path:
        """The folder that a service of the system may write to."""
        return Path("/var/lib") / self.name

    def files(
        self, version: int, credentials: Mapping[str, Path], gpu: bool = False
    ) -> Iterator[UnitFile]:
        """The unit and its drop-ins.

        Args:
            version: systemd's, of this machine.
            credentials: the files that the service reads, by the name of the credential.
            gpu: show it the GPUs.
        """
        folder = SYSTEM_UNITS if self.user_folder is None else self.user_folder / "systemd/user"
        template = "@" if self.instance else ""
        yield UnitFile(folder / f"fededge-{self.role}{template}.service", self._unit(version))
        drop_ins = folder / f"{self.name}.service.d"
        if credentials:
            yield UnitFile(drop_ins / "credentials.conf", _credentials(credentials))
        if gpu:
            yield UnitFile(drop_ins / "gpu.conf", _packaged(self.role, "fededge-agent-gpu.conf"))
        if self.role == "agent" and self.user_folder is None:
            yield UnitFile(SYSTEM_USERS, _packaged(self.role, "fededge.sysusers"))

    def _unit(self, version: int) -> str:
        text = _packaged(self.role, f"fededge-{self.role}.service")
        text = text.replace(PACKAGED_PROGRAM, f'"{_escaped(program())}"')
        if version < BACKOFF_SINCE:
            text = _without(text, BACKOFF_KEYS)
        return text if self.user_folder is None else _for_user(text, self.role)


def service_state(config: Path) -> str:
    """The state folder that belongs to a configuration file.

    It is that of the service whose file this is, such as /etc/fededge/agent.toml; else `state`.
    """
    config = config.absolute()
    for role in ROLES:
        for instance in ("", config.parent.name):
            unit = ServiceUnit(role, instance)
            if unit.config == config:
                return str(unit.state)
    return "state"


def program() -> Path:
    """The `fededge` command of this installation."""
    return Path(sysconfig.get_path("scripts")) / "fededge"


def _packaged(role: str, name: str) -> str:
    return (importlib.resources.files(PACKAGES[role]) / "units" / name).read_text()


def _escaped(path: Path) -> str:
    """The path in a unit, where `%` begins a specifier."""
    return str(path).replace("%", "%%")


def _key(line: str) -> str:
    return line.partition("=")[0]


def _without(text: str, keys: tuple[str, ...]) -> str:
    return "".join(line for line in text.splitlines(True) if _key(line) not in keys)


def _for_user(text: str, role: Role) -> str:
    """The unit with what a user's manager can do: hardening needs root."""
    lines = [USER_HEAD.format(role=role)]
    for line in text.splitlines():
        if line.startswith("["):
            lines += ["", line]
        elif _key(line) in USER_KEYS:
            lines.append(line)
    return "\n".join([*lines, "WantedBy=default.target", ""])


def _credentials(files: Mapping[str, Path]) -> str:
    """A drop-in that hands over secrets and keys: only root has to be able to read the files."""
    lines = [f"LoadCredential={name}:{_escaped(path)}" for name, path in files.items()]
    return "\n".join(["# Written by `fededge install-service`.", "[Service]", *lines, ""])
