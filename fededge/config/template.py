"""A commented configuration file with every key, for `fededge init`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from fededge.config.base import section_of
from fededge.config.sections import Side

__all__ = ["template"]


def template(kind: type[Side], values: Mapping[str, Any]) -> str:
    """A TOML file with every key: `values` are set, other keys are comments with their default."""
    hints = get_type_hints(kind, include_extras=True)
    lines = [f"# {kind.__doc__}"]
    sections: list[str] = []
    for field in msgspec.structs.fields(kind):
        section = section_of(get_type_hints(kind)[field.name])
        if section is None:
            lines += _lines(field, hints, values)
        else:
            sections += _section_lines(field, section, values.get(field.name))
    return "\n".join(lines + sections) + "\n"


def _section_lines(
    field: msgspec.structs.FieldInfo,
    section: type[Struct],
    values: Mapping[str, Any] | None,
    where: str = "",
) -> list[str]:
    """The lines of a section and those within it; `where` is the section that it is part of.

    An optional one without values is commented out as a whole.
    """
    hints, plain = get_type_hints(section, include_extras=True), get_type_hints(section)
    mark = "# " if values is None and field.default is None else ""
    given, name = values or {}, where + field.name
    lines = ["", f"# {section.__doc__}", f"{mark}[{name}]"]
    inner: list[str] = []
    for each in msgspec.structs.fields(section):
        part = section_of(plain[each.name])
        if part is None:
            lines += _lines(each, hints, given)
        else:
            inner += _section_lines(each, part, given.get(each.name), f"{name}.")
    return lines + inner


def _lines(
    field: msgspec.structs.FieldInfo, hints: Mapping[str, Any], values: Mapping[str, Any]
) -> list[str]:
    meta = hints[field.name].__metadata__[-1]  # limits of the wire come before the help
    made = field.default_factory
    value = values.get(field.name, field.default if made is msgspec.NODEFAULT else made())
    mark = "" if field.name in values or field.required else "# "
    shown = "" if value is msgspec.NODEFAULT else value
    return [f"{mark}{field.name} = {_toml(shown)}  # {meta.description}"]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_toml(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    return str(value)
