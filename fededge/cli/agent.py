"""`fededge agent`: take part in a federation with this device's data."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fededge import methods
from fededge.cli.services import add_service_options, run_until_signal
from fededge.config import AgentConfig, load

__all__ = ["add_to"]

TEXT = """\
Run the agent of this device until SIGTERM comes. Its data stays here; the models that it
trains are sent, and its personal model is in <state>/models/current/model.onnx.

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
        help="a method of your own that this device may run, beside FedEdge's; may be repeated",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    config = _allowing(load(options.config, AgentConfig), options.method)
    from fededge_agent.agent import Agent

    run_until_signal(Agent(config), options.verbose)


def _allowing(config: AgentConfig, references: Iterable[str]) -> AgentConfig:
    """The configuration with these methods allowed too; their files are imported now."""
    given = [methods.located(reference, Path.cwd()) for reference in references]
    for reference in given:
        methods.own_method(reference)
    return msgspec.structs.replace(config, methods=(*config.methods, *given))
