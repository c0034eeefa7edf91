"""`fededge man`: manual pages, made from the parser."""

from __future__ import annotations

import argparse
from pathlib import Path

from fededge import __version__
from fededge._internal.suggestions import unknown
from fededge.cli.parser import COMMANDS, command_parser
from fededge.errors import ConfigError
from fededge.storage.files import replace_file

__all__ = ["add_to"]

TEXT = """\
Print the manual page of this command or of a subcommand, or write all of them.

examples:
  fededge man simulate | man --local-file -
  fededge man --out ~/.local/share/man/man1
"""

EXIT_STATUS = """\
.SH EXIT STATUS
0: done, or a service was stopped by SIGTERM or SIGINT.
.br
1: an error that is not yours; please report it.
.br
2: something to correct: a flag, configuration, data, broker, password, a name that is taken.
.br
130, 143: Ctrl\\-C or SIGTERM ended a command that is not a service."""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="a subcommand")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write all pages there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    if options.command is not None and options.command not in COMMANDS:
        raise ConfigError(unknown("command", options.command, COMMANDS))
    pages = _pages()
    if options.out is None:
        print(pages[f"fededge-{options.command}" if options.command else "fededge"])
        return
    for name, page in pages.items():
        replace_file(options.out / f"{name}.1", page.encode())
    print(f"{len(pages)} pages in {options.out}")


def _pages() -> dict[str, str]:
    """The manual pages by name: fededge, fededge-agent, ..."""
    parser = command_parser(COMMANDS)
    summary = "train one model across a fleet of edge boxes"
    pages = {"fededge": _page(command_parser(()), summary)}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                pages[f"fededge-{name}"] = _page(command, COMMANDS[name])
    return pages


def _page(parser: argparse.ArgumentParser, summary: str) -> str:
    from argparse_manpage.manpage import Manpage

    page = Manpage(parser)
    page.prog = parser.prog.replace(" ", "-")
    page.description = summary
    page.source = f"fededge {__version__}"
    page.manual = "FedEdge"
    return f"{page}\n{EXIT_STATUS}"
