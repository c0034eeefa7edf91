"""`fededge coordinator`: run the rounds of a federation."""

from __future__ import annotations

import argparse

from fededge.cli.services import (
    Claim,
    Progress,
    add_service_options,
    load_config,
    run_service,
)

__all__ = ["add_to"]

TEXT = """\
Run the coordinator of a federation until SIGTERM. When its rounds are done it stays, and serves the
last version; with --exit-when-done it ends. Started again, it continues from its state folder.

examples:
  fededge init coordinator > coordinator.toml
  fededge coordinator --config coordinator.toml
  FEDEDGE_PASSWORD=... fededge coordinator --config coordinator.toml
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    add_service_options(parser)
    parser.add_argument(
        "--exit-when-done", action="store_true", help="end when all rounds are done"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from fededge.config import CoordinatorConfig

    config = load_config(options, CoordinatorConfig)
    from fededge_server.shell import Coordinator, claim

    def make(claim: Claim, progress: Progress) -> Coordinator:
        stays = not options.exit_when_done
        return Coordinator(config, claim=claim, progress=progress, stays=stays)

    run_service(make, claim)
