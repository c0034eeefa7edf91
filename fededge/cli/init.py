"""`fededge init`: a configuration file to edit, with every key explained."""

from __future__ import annotations

import argparse

from fededge.config import AgentConfig, CoordinatorConfig, template

__all__ = ["add_to"]

TEXT = """\
Print a commented configuration file: the keys that must be set, and the others with their
defaults, each with its meaning.

examples:
  fededge init coordinator --federation gates > coordinator.toml
  fededge init agent --federation gates --device gate-7 --broker 10.0.0.2 > agent.toml
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("side", choices=("coordinator", "agent"), help="which side to set up")
    parser.add_argument("--federation", default="my-federation", help="name of the federation")
    parser.add_argument("--device", default="device-1", help="id of the device (agent)")
    parser.add_argument("--broker", default="localhost", help="host of the MQTT broker")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    values = {
        "federation": options.federation,
        "state": "state",
        "broker": {"host": options.broker},
    }
    if options.side == "agent":
        text = template(AgentConfig, {**values, "device": options.device})
    else:
        text = template(CoordinatorConfig, {**values, "method": "fedavg"})
    print(text, end="")
