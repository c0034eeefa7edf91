"""Every line that the source can log, found by reading it: examples for the table of events."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["LoggedLine", "logged_lines"]

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fededge", "server", "device_agent")

# Apps log as they like: what they import is not part of a service.
APPS = ("fededge/predictor", "fededge/simulation", "fededge/cli/demo")

METHODS = {"debug", "info", "warning", "error", "exception", "warn", "note"}
LOGS = {"log", "lines"}
PLACEHOLDER = "1"


class LoggedLine(NamedTuple):
    """A line with all that it quotes replaced; `named`: the call names its event itself."""

    place: str
    text: str
    named: bool


def logged_lines() -> Iterator[LoggedLine]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(APPS):
                yield from _of_file(name, ast.parse(path.read_text()))


def _of_file(name: str, tree: ast.Module) -> Iterator[LoggedLine]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _logs(call):
                    named = any(keyword.arg == "extra" for keyword in call.keywords)
                    for text in _texts(call.args[0], function):
                        yield LoggedLine(f"{name}:{call.lineno}", text, named)


def _logs(call: ast.Call) -> bool:
    match call.func:
        case ast.Name("Note"):
            return bool(call.args)
        case ast.Attribute(ast.Name(owner), method):
            return (owner in LOGS or (owner, method) == ("self", "warn")) and method in METHODS
        case ast.Attribute(ast.Attribute(_, owner), method):
            return owner in LOGS and method in METHODS
    return False


def _texts(value: ast.expr, function: ast.FunctionDef) -> Iterator[str]:
    """The texts that an argument may be; a name stands for all that the function assigns to it."""
    match value:
        case ast.Constant(str(text)):
            yield text.replace("%s", PLACEHOLDER).replace("%d", PLACEHOLDER)
        case ast.JoinedStr(parts):
            yield "".join(_part(part) for part in parts)
        case ast.IfExp(_, one, other):
            yield from _texts(one, function)
            yield from _texts(other, function)
        case ast.Name(name):
            for line in ast.walk(function):
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name:
                    yield from _texts(line.value, function)


def _part(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER
