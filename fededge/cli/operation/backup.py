"""`fededge backup`: the state of a coordinator or an agent in one file."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from pathlib import Path

from fededge import __version__
from fededge.config import AgentConfig, load_either
from fededge.errors import StoreError
from fededge.storage.archive import Contents

__all__ = ["add_to", "summary"]

TEXT = """\
Write the state of a coordinator or an agent into one file, also while it runs: of a coordinator its
journal, models and accepted updates, of an agent its identity, private state and last update. The
file holds secrets and private state; only its owner can read it. `fededge restore` reads it.

Keys, certificates and the configuration itself are not part of it, nor are exported models.

examples:
  fededge backup /mnt/backup/monday.fededge --config coordinator.toml
  fededge backup agent.fededge --config agent.toml
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("file", type=Path, metavar="FILE", help="the backup to write")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    path: Path = options.file.absolute()
    if not path.parent.is_dir():
        raise StoreError(f"{path.parent}: there is no such folder; make it first")
    config = load_either(options.config)
    state = Path(config.state)
    made = datetime.now(timezone.utc).isoformat(timespec="seconds")
    if isinstance(config, AgentConfig):
        from fededge_agent.store.backup import back_up as back_up_agent

        about = Contents("agent", config.federation, config.device, __version__, made, "")
        contents = back_up_agent(state, path, about)
    else:
        from fededge_server.store.backup import back_up as back_up_coordinator

        about = Contents("coordinator", config.federation, "", __version__, made, "")
        contents = back_up_coordinator(state, path, about)
    print(f"{path}: {summary(contents)}")


def summary(contents: Contents) -> str:
    """One line for people: whose backup it is, where that stood, and how large it is."""
    whose = contents.kind + (f" '{contents.device}'" if contents.device else "")
    return (
        f"{whose} of federation '{contents.federation}', {contents.stands}, "
        f"{len(contents.files)} files, {contents.bytes:,} bytes, made {contents.made}"
    )
