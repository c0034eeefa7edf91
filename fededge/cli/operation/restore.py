"""`fededge restore`: a state folder from a backup."""

from __future__ import annotations

import argparse
from pathlib import Path

from fededge._internal.plain_text import plain
from fededge.cli.operation.backup import summary
from fededge.config import AgentConfig, Side, load_either
from fededge.errors import ConfigError
from fededge.storage.archive import Contents, read_contents, restore

__all__ = ["add_to"]

TEXT = """\
Make the state folder of a coordinator or an agent from a backup, on this or another machine: all of
it or nothing. The folder that the configuration names must be missing or empty: stop the service
and move the old folder away first. Never run the restored service and the old one at once.

A coordinator goes on from the round of the backup; its devices follow.

examples:
  fededge restore /mnt/backup/monday.fededge --config coordinator.toml
  fededge restore monday.fededge --check
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("file", type=Path, metavar="FILE", help="the backup to read")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--config", type=Path, metavar="FILE", help="the TOML file of the service")
    wanted.add_argument("--check", action="store_true", help="say what it holds, restore nothing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    path: Path = options.file
    contents = read_contents(path)
    if options.check:
        print(f"{path}: {plain(summary(contents))}")
        return
    config = load_either(options.config)
    _check_ours(path, contents, config)
    folder = Path(config.state)
    if isinstance(config, AgentConfig):
        from fededge_agent.store import checking as agent_files

        restore(path, folder, contents, agent_files.damage)
    else:
        from fededge_server.store import checking as coordinator_files

        restore(path, folder, contents, coordinator_files.damage)
    print(f"{folder}: restored from {path}: {plain(summary(contents))}")


def _check_ours(path: Path, contents: Contents, config: Side) -> None:
    """Refuse the backup of another service than the one that the configuration describes."""
    device = config.device if isinstance(config, AgentConfig) else ""
    kind = "agent" if isinstance(config, AgentConfig) else "coordinator"
    if (contents.kind, contents.federation, contents.device) != (kind, config.federation, device):
        ours = kind + (f" '{device}'" if device else "")
        raise ConfigError(
            f"{path}: this is the backup of another service: {plain(summary(contents))}; the "
            f"configuration is that of {ours} of federation '{config.federation}'"
        )
