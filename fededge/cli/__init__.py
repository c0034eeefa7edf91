"""The `fededge` command. Each subcommand is a module of a folder here, imported lazily."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence

from fededge._internal import logs
from fededge._internal.plain_text import plain
from fededge.cli.parser import command_parser, wanted_command
from fededge.errors import ConfigError, FedEdgeError

__all__ = ["main"]

MOST_SAID = 10_000
"""The most characters of an error; one that lists all differences of a configuration is long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; a user's mistake gives one sentence and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_terminal()
    command = None
    try:
        command = wanted_command(given)
        options = command_parser([command] if command else []).parse_args(given)
        return int(options.run(options) or 0)
    except FedEdgeError as error:
        print(logs.last_line(plain(str(error), MOST_SAID)), file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(f"fededge: {_missing(error, command)}", file=sys.stderr)
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
