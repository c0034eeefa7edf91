"""The machine's own Mosquitto service: it gets the configuration of a closed broker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fededge.errors import ConfigError
from fededge.storage.files import read_file, write_public

__all__ = ["check_service", "start_service"]

CONFIG = Path("/etc/mosquitto/mosquitto.conf")
"""The file that Debian's service reads."""


def check_service() -> None:
    """Refuse a machine on which the service cannot be given a configuration."""
    if not CONFIG.parent.is_dir():
        raise ConfigError(
            f"--service: there is no {CONFIG.parent} here: install Mosquitto, or leave the flag "
            "out and start the broker by its own manager"
        )
    if os.geteuid() != 0:
        raise ConfigError("--service: the machine's Mosquitto belongs to root: use sudo")


def start_service(config: Path) -> list[str]:
    """Install the configuration and restart the service; return a line for each thing done.

    The first file of somebody else is kept beside it.
    """
    said, wanted = [], read_file("--out", config)
    before = CONFIG.read_bytes() if CONFIG.exists() else b""
    kept = CONFIG.with_name(f"{CONFIG.name}.before-fededge")
    if before and before != wanted and not kept.exists():
        write_public(kept, before)
        said.append(f"{kept}: the configuration that was there")
    write_public(CONFIG, wanted)
    said.append(f"{CONFIG}: is {config}")
    for command in (["enable", "mosquitto"], ["restart", "mosquitto"]):
        done = subprocess.run(["systemctl", *command], capture_output=True, text=True)
        if done.returncode:
            raise ConfigError(
                f"systemctl {' '.join(command)} failed: {' '.join(done.stderr.split())}; see "
                "journalctl --unit mosquitto"
            )
    return [*said, "mosquitto: restarted, and starts at every boot"]
