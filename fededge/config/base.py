"""The base class of all sections, and the help of their keys."""

from __future__ import annotations

from typing import Any

from msgspec import Meta, Struct

__all__ = ["Section", "described", "section_of"]


def described(text: str, **limits: Any) -> Meta:
    """A key's help text and limits."""
    return Meta(description=text, **limits)


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: immutable, and refuses unknown keys."""


def section_of(hint: Any) -> type[Struct] | None:
    """The section class in a type hint, also if it is optional; None if there is none."""
    for part in (hint, *getattr(hint, "__args__", ())):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None
