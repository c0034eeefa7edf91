"""The parser of the `fededge` command; a subcommand adds its flags when it is wanted."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Collection, Sequence
from typing import NoReturn

from fededge import __version__
from fededge._internal.suggestions import unknown
from fededge.errors import ConfigError

__all__ = ["COMMANDS", "command_parser", "wanted_command"]

COMMANDS = {
    "demo": "run a whole federation on this machine: broker, coordinator, agents, data, ONNX",
    "simulate": "run one method on a simulated fleet",
    "compare": "compare methods over several seeds on one split",
    "coordinator": "run the coordinator of a federation",
    "agent": "run the agent of a device",
    "install-service": "install the coordinator or the agent as a systemd service",
    "versions": "list, show and export a federation's versions, or roll back to one",
    "devices": "list the devices of a federation; drain, rest, quarantine, release, forget one",
    "pause": "pause a federation: no new round begins",
    "resume": "end the pause of a federation",
    "apply": "change the settings of a run while it lasts",
    "history": "show the rounds of a federation and its operator's orders; plot accuracies",
    "rollback": "continue a federation from an earlier version of its model",
    "backup": "write the state of a coordinator or an agent into one file, while it runs",
    "restore": "make a state folder from a backup, on this or another machine",
    "status": "show the state of a federation: its round, its model, its devices",
    "audit": "show what has left this device",
    "export": "manage a device's exported models: list, roll back, pin, report bad",
    "predict": "classify files and folders with a device's model",
    "serve-model": "serve a device's model over local HTTP, for apps in any language",
    "init": "write configuration files, certificates, a closed broker's files, keys",
    "enroll": "enrol this box: make its key, ask for a certificate, take the answer",
    "rotate": "replace passwords, certificates and signing keys while the old ones are valid",
    "partition": "show and plot how a label-skew split partitions a data set among devices",
    "doctor": "show what this installation can do, and what is missing",
    "completion": "print the completion of a shell for this command: bash, zsh or fish",
    "man": "print a manual page of this command or of a subcommand",
}

FOLDERS = {
    "demo": ("demo",),
    "experiments": ("simulate", "compare", "partition"),
    "operation": (
        *("coordinator", "agent", "install-service", "rollback", "status", "audit", "init"),
        *("doctor", "backup", "restore"),
    ),
    "enrolment": ("enroll", "rotate"),
    "fleet": ("devices", "pause", "resume", "apply", "history", "versions"),
    "apps": ("export", "predict", "serve-model"),
    "terminal": ("completion", "man"),
}
"""The folder of each command's module."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def command_parser(wanted: Collection[str]) -> argparse.ArgumentParser:
    """Build the parser; only the wanted subcommands are imported and get their flags."""
    parser = Parser(
        prog="fededge",
        description="Train one model across a fleet of edge boxes; their data stays on them.",
        epilog="Begin with: fededge demo",
    )
    parser.add_argument("--version", action="version", version=f"fededge {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        formatter = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help=text, formatter_class=formatter)
        if name in wanted:
            importlib.import_module(_module(name)).add_to(command)
    return parser


def _module(command: str) -> str:
    folder = next(folder for folder, commands in FOLDERS.items() if command in commands)
    return f"fededge.cli.{folder}.{command.replace('-', '_')}"


def wanted_command(given: Sequence[str]) -> str | None:
    """The subcommand among the arguments; ConfigError with the closest one for a typo."""
    word = next((word for word in given if not word.startswith("-")), None)
    if word is not None and word not in COMMANDS:
        raise ConfigError(unknown("command", word, COMMANDS))
    return word
