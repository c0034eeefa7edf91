"""The page on experiments names every method with its options, and every preset."""

from __future__ import annotations

import dataclasses
import re
import typing
from itertools import product

import pytest

from fededge.methods import METHODS
from fededge.simulation.presets import presets
from tests.pages import page

PAGE = page("experiments.md")
ROWS = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", PAGE, re.MULTILINE))


def test_every_method_is_there_with_its_defaults() -> None:
    written = {text for text in ROWS if text.partition("(")[0] in METHODS}
    assert written == {str(kind()) for kind in METHODS.values()}


@pytest.mark.parametrize("name", METHODS)
def test_the_words_that_an_option_may_be_are_in_the_row_or_that_of_a_part(name: str) -> None:
    """MAP's are FedRS's and FedPHP's, and FedALA's are ALA's."""
    kind = METHODS[name]
    shown = "".join(ROWS[str(part())] for part in kind.mro() if part in METHODS.values())
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        for word in typing.get_args(hints[field.name]):
            named = {f"`{word}`", f"`{field.name}={word}`"}
            assert word == field.default or any(text in shown for text in named)


def test_every_preset_is_there() -> None:
    """`a-{b,c}` stands for a-b and a-c."""
    section = PAGE.partition("## Presets")[2].partition("\n## ")[0]
    table = "".join(line for line in section.splitlines() if line.startswith("|"))
    named = {name for pattern in re.findall(r"`([^`]+)`", table) for name in expanded(pattern)}
    named |= {f"{name}-small" for name in named}
    assert named | set(re.findall(r"`(table-[^`]+)`", section)) == set(presets())


def expanded(pattern: str) -> list[str]:
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return ["".join(words) for words in product(*parts)]
