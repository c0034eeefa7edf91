"""The glossary tells the truth: what it names exists, each word once, each class name once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from tests.pages import page
from tests.test_imports import FOLDERS, modules

PAGE = page("glossary.md")

WANTED = {
    *("federation", "coordinator", "agent", "device", "round", "turn", "task", "version", "update"),
    *("report", "scalar", "participant", "straggler", "staleness", "private state", "manifest"),
    *("personal model", "variant", "promotion", "rollout", "layout", "flat vector", "companion"),
    *("teacher", "phase", "chunk"),
}


def rows(text: str) -> list[list[str]]:
    """The cells of all tables, without headings and rules."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "word"]


@cache
def classes() -> dict[str, tuple[str, ...]]:
    """The classes of every module of the shipped packages."""
    return {module: _classes(path) for module, path in modules(FOLDERS)}


def _classes(path: Path) -> tuple[str, ...]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return tuple(node.name for node in nodes if isinstance(node, ast.ClassDef))


def exists(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return name in classes() or last in classes().get(module, ())


def shared_names() -> dict[str, set[str]]:
    """Names of several classes, with their modules."""
    counts = Counter(name for names in classes().values() for name in names)
    return {
        name: {module for module, names in classes().items() if name in names}
        for name, count in counts.items()
        if count > 1
    }


def test_every_word_has_a_sentence_and_a_place_that_exists() -> None:
    for word, meaning, where in rows(PAGE):
        assert re.fullmatch("[a-z][a-z -]*", word)
        assert re.search(r"[.:][)]?$", meaning), f"{word}: the meaning is not a sentence"
        (name,) = re.findall("`([^`]+)`", where)
        assert exists(name), f"{word}: there is no {name}"


def test_every_word_is_there_once() -> None:
    words = Counter(row[0] for row in rows(PAGE))
    assert [word for word, count in words.items() if count > 1] == []
    assert WANTED - words.keys() == set()


def test_no_two_classes_share_a_name() -> None:
    """A pair that must share one needs a table in the glossary with its reason; none does."""
    assert shared_names() == {}


def test_a_class_that_is_not_there_would_be_noticed() -> None:
    assert exists("fededge.wire.messages.Report")
    assert exists("fededge.wire")
    assert not exists("fededge.wire.messages.Postcard")
    assert not exists("fededge.post")
