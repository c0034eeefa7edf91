"""`fededge install-service`: run the coordinator or the agent under systemd."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from fededge.cli.operation.unit_files import ServiceUnit, UnitFile, program
from fededge.errors import ConfigError

__all__ = ["add_to"]

TEXT = """\
Install the coordinator or the agent as a systemd service: write its unit files, from its
configuration file, and print the commands that start it. Run again, it updates them.

  --system   a hardened service of the machine, started at boot; needs root. Its configuration is
             /etc/fededge/agent.toml or coordinator.toml, its state /var/lib/fededge-agent or
             fededge-coordinator. Secrets and keys that the configuration names become credentials:
             only root has to be able to read the files.
  --user     a service of your own, without root and without hardening. Its configuration is below
             ~/.config/fededge.

With --instance NAME, several federations share a machine: the configuration is in a folder NAME
(/etc/fededge/NAME/agent.toml), and the state in /var/lib/fededge-agent@NAME.

examples:
  sudo fededge install-service agent --now
  sudo fededge install-service agent --instance gates --gpu
  fededge install-service coordinator --user
  fededge install-service agent --dry-run
"""

HIDDEN = ("/home", "/root", "/run/user")
"""Folders that the hardening hides from a service."""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("role", choices=("coordinator", "agent"), help="the service to install")
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--system", action="store_true", help="a service of the machine (this is the default)"
    )
    place.add_argument("--user", action="store_true", help="a service of your own, without root")
    parser.add_argument(
        "--instance", default="", metavar="NAME", help="one of several federations on this machine"
    )
    parser.add_argument(
        "--gpu", action="store_true", help="let the agent's service use GPUs (--system)"
    )
    parser.add_argument(
        "--now",
        action="store_true",
        help="also start it, now and at every boot",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the files instead of writing them"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    unit = _unit(options)
    if options.dry_run:
        credentials = _credentials(unit) if unit.config.exists() else {}
        for file in unit.files(systemd_version(), credentials, options.gpu):
            print(f"# {file.path}\n{file.text}")
        return
    _check_machine(unit)
    _install(unit.files(systemd_version(), _credentials(unit), options.gpu))
    if options.now:
        _start(unit)
    else:
        _say_next(unit)


def _unit(options: argparse.Namespace) -> ServiceUnit:
    from fededge.wire.topics import check_name

    if options.instance:
        check_name("--instance", options.instance)
    if options.gpu and (options.user or options.role != "agent"):
        raise ConfigError("--gpu: is for the agent's service of the system; leave it out")
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return ServiceUnit(options.role, options.instance, folder if options.user else None)


def _check_machine(unit: ServiceUnit) -> None:
    if not Path("/run/systemd/system").is_dir():
        raise ConfigError(
            "this machine was not booted with systemd: start the service by its own manager, or "
            "print the unit files with --dry-run"
        )
    if unit.user_folder is not None:
        return
    if os.geteuid() != 0:
        raise ConfigError("a service of the system needs root: use sudo, or --user")
    for path in {program(), Path(sys.base_prefix)}:
        if _hidden(path):
            raise ConfigError(
                f"a hardened service cannot see {path}: install FedEdge outside of /home and "
                "/root (python3 -m venv /opt/fededge), or use --user"
            )


def _hidden(path: Path) -> bool:
    return any(path.resolve().is_relative_to(folder) for folder in HIDDEN)


def _credentials(unit: ServiceUnit) -> Mapping[str, Path]:
    """Check the configuration for the service, and return the secret files that it names."""
    from fededge.config import AgentConfig, CoordinatorConfig, load
    from fededge.config.credentials import credential_files

    path = unit.config
    if not path.exists():
        raise ConfigError(
            f"{path}: there is no such file; the service reads it: "
            f"fededge init {unit.role} > {path.name}, edit it, and move it there"
        )
    config = load(path, AgentConfig if unit.role == "agent" else CoordinatorConfig)
    if unit.user_folder is not None:
        return {}
    if not path.stat().st_mode & 0o004:
        raise ConfigError(
            f"{path}: the service's user cannot read it: chmod 644 {path}, with the password in a "
            "file of its own (password_file)"
        )
    if Path(config.state) != unit.state:
        raise ConfigError(
            f"{path}: state is '{config.state}', but the service may write to {unit.state} only; "
            f'set state = "{unit.state}"'
        )
    if config.data.root and _hidden(Path(config.data.root)):
        raise ConfigError(
            f"{path}: data.root is '{config.data.root}', which a hardened service cannot see; "
            "move it out of /home and /root, or use --user"
        )
    return credential_files(config)


def systemd_version() -> int:
    """The version of this machine's systemd; the newest if there is none."""
    try:
        said = subprocess.run(
            ["systemctl", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return sys.maxsize
    found = re.match(r"systemd (\d+)", said)
    return int(found[1]) if found else sys.maxsize


def _install(files: Iterable[UnitFile]) -> None:
    for file in files:
        try:
            changed = not file.path.exists() or file.path.read_text() != file.text
            if changed:
                file.path.parent.mkdir(parents=True, exist_ok=True)
                file.path.write_text(file.text)
                file.path.chmod(0o644)
        except OSError as error:
            raise ConfigError(f"{file.path}: cannot be written ({error.strerror})") from None
        print(f"{'wrote' if changed else 'kept '} {file.path}")
        if "sysusers.d" in file.path.parts:
            _make_user(file.path)


def _make_user(path: Path) -> None:
    """Have systemd make the user; one that is there already is kept."""
    try:
        subprocess.run(["systemd-sysusers", str(path)], check=True)
    except (OSError, subprocess.CalledProcessError):
        raise ConfigError(
            "the user 'fededge' cannot be made by systemd-sysusers; make it yourself: "
            "useradd --system fededge"
        ) from None


def _start(unit: ServiceUnit) -> None:
    """Enable the service and start it with its new files."""
    user = [] if unit.user_folder is None else ["--user"]
    for command in (["daemon-reload"], ["enable", unit.name], ["restart", unit.name]):
        done = subprocess.run(["systemctl", *user, *command], capture_output=True, text=True)
        if done.returncode:
            raise ConfigError(
                f"systemctl {' '.join(command)} failed: {' '.join(done.stderr.split())}; see "
                f"journalctl {' '.join([*user, '--unit', unit.name])}"
            )
    print(f"{unit.name} runs, and starts at every boot")
    print(f"its log: journalctl {' '.join([*user, '--follow', '--unit', unit.name])}")


def _say_next(unit: ServiceUnit) -> None:
    user = "" if unit.user_folder is None else " --user"
    print("next:")
    print(f"  systemctl{user} daemon-reload && systemctl{user} enable --now {unit.name}")
    print(f"  journalctl{user} --follow --unit {unit.name}")
    if user:
        print("it ends when you log out, unless you run once: loginctl enable-linger")
