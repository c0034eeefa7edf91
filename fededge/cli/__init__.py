"""The `fededge` command. Each subcommand is a module of a folder here, imported lazily."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from fededge import __version__
from fededge._internal.plain_text import plain
from fededge.errors import ConfigError, FedEdgeError

__all__ = ["main"]

COMMANDS = {
    "demo": "run a whole federation on this machine: broker, coordinator, agents, data, ONNX",
    "simulate": "run one method on a simulated fleet",
    "compare": "compare methods over several seeds on one split",
    "coordinator": "run the coordinator of a federation",
    "agent": "run the agent of a device",
    "rollback": "continue a federation from an earlier version of its model",
    "status": "show the state of a federation: its round, its model, its devices",
    "audit": "show what has left this device",
    "export": "manage a device's exported models: list, roll back, pin, report bad",
    "predict": "classify files and folders with a device's model",
    "serve-model": "serve a device's model over local HTTP, for apps in any language",
    "init": "write configuration files, certificates, a closed broker's files, keys",
    "partition": "show and plot how a label-skew split partitions a data set among devices",
    "doctor": "show what this installation can do, and what is missing",
}

FOLDERS = {
    "demo": ("demo",),
    "experiments": ("simulate", "compare", "partition"),
    "operation": ("coordinator", "agent", "rollback", "status", "audit", "init", "doctor"),
    "apps": ("export", "predict", "serve-model"),
}
"""The folder of each command's module."""

MOST_SAID = 10_000
"""The most characters of an error; one that lists all differences of a configuration is long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; a user's mistake gives one sentence and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_terminal()
    try:
        options = _parser(given).parse_args(given)
        return int(options.run(options) or 0)
    except FedEdgeError as error:
        print(f"fededge: {plain(str(error), MOST_SAID)}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(f"fededge: {_missing(error, _wanted(given))}", file=sys.stderr)
        return ConfigError.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of stdout is gone (`| head`): also silence Python's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _prepare_terminal() -> None:
    """Escape characters that the terminal cannot encode, and silence Pillow's warnings.

    FedEdge has its own errors for the images that Pillow warns about.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.filterwarnings("ignore", module="PIL")


def _missing(error: ModuleNotFoundError, command: str | None) -> str:
    """Return the error for a missing dependency; a missing module of FedEdge is a bug."""
    name = (error.name or "").partition(".")[0]
    if name.startswith("fededge"):
        raise error
    return (
        f"{command} needs {name}, which is not installed here; only predict and serve-model work "
        f"without it: pip install {name}"
    )


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser; import only the subcommand that is called."""
    parser = Parser(
        prog="fededge",
        description="Train one model across a fleet of edge boxes; their data stays on them.",
        epilog="Begin with: fededge demo",
    )
    parser.add_argument("--version", action="version", version=f"fededge {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    wanted = _wanted(given)
    for name, text in COMMANDS.items():
        formatter = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help=text, formatter_class=formatter)
        if name == wanted:
            importlib.import_module(_module(name)).add_to(command)
    return parser


def _module(command: str) -> str:
    folder = next(folder for folder, commands in FOLDERS.items() if command in commands)
    return f"fededge.cli.{folder}.{command.replace('-', '_')}"


def _wanted(given: Sequence[str]) -> str | None:
    return next((word for word in given if word in COMMANDS), None)
