"""The `fededge` command. Each subcommand is a module here, imported only when it is called."""

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
    "demo": "a whole federation on this machine: broker, coordinator, agents, real data, ONNX",
    "simulate": "one method on a simulated fleet",
    "compare": "several methods and seeds side by side on one split",
    "coordinator": "run the coordinator of a federation",
    "agent": "run the agent of a device",
    "rollback": "let a federation go on from an earlier version of its model",
    "status": "where a federation stands: its round, its model, its devices",
    "audit": "what has left this device",
    "export": "the models that a device has exported: list, roll back, pin, report bad",
    "predict": "ask a device's model about files and folders",
    "serve-model": "a device's model behind a local HTTP endpoint, for apps in any language",
    "init": "write configuration files, certificates, a closed broker's files, keys",
    "partition": "show, and plot, how a label-skew split shares a data set among devices",
    "doctor": "say what this installation can do, and what is missing",
}

MOST_SAID = 10_000
"""Characters of an error; one that lists all differences of a configuration is long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; a mistake of the user's is one sentence and exit code 2."""
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
        # The reader of our output is gone (`| head`): also keep Python's last flush quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _prepare_terminal() -> None:
    """Names of files are bytes, and a terminal may not have them; a library's warnings help nobody.

    Pillow's are about pictures that get a sentence of ours.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.filterwarnings("ignore", module="PIL")


def _missing(error: ModuleNotFoundError, command: str | None) -> str:
    """An app's box need not have all that an agent needs; a module of our own is a bug."""
    name = (error.name or "").partition(".")[0]
    if name.startswith("fededge"):
        raise error
    return (
        f"{command} takes {name}, which is not installed here; only predict and serve-model do "
        f"without it: pip install {name}"
    )


class Parser(argparse.ArgumentParser):
    """Complains in one line, as everything else does, without a page of usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; only the subcommand that is called has to be imported."""
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
            module = f"fededge.cli.{name.replace('-', '_')}"
            importlib.import_module(module).add_to(command)
    return parser


def _wanted(given: Sequence[str]) -> str | None:
    return next((word for word in given if word in COMMANDS), None)
