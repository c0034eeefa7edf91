"""`fededge agent`: take part in a federation with this device's data."""

from __future__ import annotations

import argparse

from fededge.cli.services import add_service_options, run_until_signal
from fededge.config import AgentConfig, load

__all__ = ["add_to"]

TEXT = """\
Run the agent of this device until SIGTERM comes. Its data stays here; the models that it
trains are sent, and its personal model is in <state>/models/current/model.onnx.

examples:
  fededge init agent > agent.toml
  fededge agent --config agent.toml
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    add_service_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    config = load(options.config, AgentConfig)
    from fededge_agent.app import Agent

    run_until_signal(Agent(config), options.verbose)
