"""`fededge agent`: take part in a federation with this device's data."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fededge.cli.services import (
    Claim,
    Progress,
    add_service_options,
    load_config,
    run_service,
)

if TYPE_CHECKING:
    from fededge.config import AgentConfig

__all__ = ["add_to"]

TEXT = """\
Run the agent of this device until SIGTERM. Its data stays here; it uploads the models that it
trains. Its personal model is <state>/models/current/model.onnx.

examples:
  fededge init agent > agent.toml
  fededge agent --config agent.toml
  fededge agent --config agent.toml --method /opt/fed/keepsake.py:Keepsake
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    add_service_options(parser)
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        metavar="FILE.py:NAME",
        help="a plugin that this device may run, beside FedEdge's methods; may be repeated",
    )
    parser.add_argument(
        "--network",
        action="append",
        default=[],
        metavar="FILE.py:NAME",
        help="a network in a file that this device may train, beside the zoo; may be repeated",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from fededge.config import AgentConfig

    config = _allowing(load_config(options, AgentConfig), options.method, options.network)
    from fededge_agent.agent import Agent, Surroundings

    def make(claim: Claim, progress: Progress) -> Agent:
        return Agent(config, Surroundings(claim=claim, progress=progress))

    run_service(make, Surroundings().claim)


def _allowing(config: AgentConfig, plugins: Iterable[str], networks: Iterable[str]) -> AgentConfig:
    """Return the configuration with these files allowed too; the trainer imports them."""
    import msgspec

    from fededge import methods, models

    absolute = [methods.absolute_paths(reference, Path.cwd()) for reference in plugins]
    nets = [models.absolute_reference(reference, Path.cwd()) for reference in networks]
    for reference in nets:
        models.check_reference(reference)
    return msgspec.structs.replace(
        config, methods=(*config.methods, *absolute), networks=(*config.networks, *nets)
    )
