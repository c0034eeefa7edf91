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
WORDS, SHARED = PAGE.split("## Classes that share a name")

# Pairs that are about to get names of their own.
PENDING = {
    "Answer",
    "ChunkCame",
    "Entry",
    "Facts",
    "File",
    "Finish",
    "Layout",
    "Manifest",
    "Merged",
    "Message",
    "Open",
    "Outcome",
    "Progress",
    "Trained",
    "Turn",
    "Wanted",
}

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
    return [row for row in cells if row[0] not in ("word", "class")]


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
    for word, meaning, where in rows(WORDS):
        assert re.fullmatch("[a-z][a-z ]*", word)
        assert re.search(r"[.:][)]?$", meaning), f"{word}: the meaning is not a sentence"
        (name,) = re.findall("`([^`]+)`", where)
        assert exists(name), f"{word}: there is no {name}"


def test_every_word_is_there_once() -> None:
    words = Counter(row[0] for row in rows(WORDS))
    assert [word for word, count in words.items() if count > 1] == []
    assert WANTED - words.keys() == set()


def test_a_class_shares_its_name_only_if_the_glossary_says_why() -> None:
    listed = {
        cell.strip("`"): set(re.findall("`([^`]+)`", where)) for cell, where, _ in rows(SHARED)
    }
    found = {name: where for name, where in shared_names().items() if name not in PENDING}
    assert found == listed


def test_a_reason_stands_beside_every_shared_name() -> None:
    assert all(re.search(r"\w+ \w+.*\.$", reason) for _, _, reason in rows(SHARED))


def test_a_class_that_is_not_there_would_be_noticed() -> None:
    assert exists("fededge.wire.messages.Report")
    assert exists("fededge.wire")
    assert not exists("fededge.wire.messages.Postcard")
    assert not exists("fededge.post")
