"""Parser of methods as text: `fedprox(mu=0.1)+mixup`, or `scaffold@first+map` for one phase."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Mapping

from fededge.errors import FedEdgeError, MethodError
from fededge.method.base import Method
from fededge.method.stack import Stack

__all__ = ["parse"]

LAYER = re.compile(r"([\w.-]+)\s*(?:\(([^()]*)\))?\s*((?:@[\w-]+\s*)*)")

Option = bool | int | float | str

EXPECTED = {bool: "true or false", int: "a whole number", float: "a finite number"}


def parse(text: str, known: Mapping[str, type[Method]]) -> Stack:
    """Read `name(key=value, …)@phase+name…`; errors list the known names."""
    if not text.strip():
        raise MethodError(f"no method is named; known methods: {', '.join(sorted(known))}")
    parts = re.split(r"\+(?![^(]*\))", text)  # a + inside parentheses belongs to a number: 1e+3
    if not all(part.strip() for part in parts):
        raise MethodError(f"method '{text}' has a + without a layer on each side")
    layers, limits = [], {}
    for part in parts:
        layer, limit = _parse_layer(part.strip(), known)
        layers.append(layer)
        if limit:
            limits[layer.name] = limit
    return Stack(tuple(layers), limits)


def _parse_layer(text: str, known: Mapping[str, type[Method]]) -> tuple[Method, tuple[str, ...]]:
    match = LAYER.fullmatch(text)
    if match is None:
        raise MethodError(f"method '{text}' is not of the form name or name(key=value, ...)")
    name, options, phases = match.groups(default="")
    if name not in known:
        raise MethodError(f"unknown method '{name}'{_hint(name, known)}")
    limit = tuple(phase.strip() for phase in phases.split("@")[1:])
    return _instantiate(known[name], _parse_options(name, options, known[name])), limit


def _instantiate(kind: type[Method], options: dict[str, Option]) -> Method:
    try:
        return kind(**options)
    except FedEdgeError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's constructor may raise anything
        raise MethodError(
            f"method '{kind.name}' refuses its options ({type(error).__name__}: {error})"
        ) from None


def _parse_options(name: str, text: str, kind: type[Method]) -> dict[str, Option]:
    fields = {field.name: field.default for field in dataclasses.fields(kind)}
    values: dict[str, Option] = {}
    for part in text.split(",") if text.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise MethodError(f"'{part.strip()}' in '{name}({text})' is not of the form key=value")
        if key not in fields:
            raise MethodError(f"method '{name}' has no option '{key}'{_hint(key, fields)}")
        if key in values:
            raise MethodError(f"option '{key}' is given twice in '{name}({text})'")
        choices = typing.get_args(typing.get_type_hints(kind)[key])
        values[key] = _parse_value(f"{name}({key}=…)", value, fields[key], choices)
    return values


def _parse_value(where: str, text: str, default: object, choices: tuple[str, ...]) -> Option:
    """Read an option's value as the type of its default."""
    if isinstance(default, str):
        if choices and text not in choices:
            raise MethodError(f"{where} must be one of {', '.join(choices)}; got '{text}'")
        return text
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, int):
            return int(text)
        number = float(text)
        if math.isfinite(number):
            return number
    except (KeyError, ValueError):
        pass
    raise MethodError(f"{where} must be {EXPECTED[type(default)]}, got '{text}'")


def _hint(word: str, allowed: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, allowed, n=1)
    guess = f"; did you mean '{close[0]}'?" if close else ""
    return f"{guess} (known: {', '.join(sorted(allowed)) or 'none'})"
