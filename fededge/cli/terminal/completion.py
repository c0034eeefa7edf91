"""`fededge completion`: the completion script of a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from fededge.cli.parser import COMMANDS, command_parser

__all__ = ["add_to"]

TEXT = """\
Print the completion script of a shell: commands, flags, choices and files.

examples:
  fededge completion bash > ~/.local/share/bash-completion/completions/fededge
  fededge completion zsh > "${fpath[1]}/_fededge"
  fededge completion fish > ~/.config/fish/completions/fededge.fish
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = TEXT
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to print it for")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    import shtab

    parser = command_parser(COMMANDS)
    for action in _actions(parser):
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's own attribute
    print(shtab.complete(parser, options.shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The flags of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
