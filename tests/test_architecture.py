"""docs/architecture.md tells the truth: paths, names, folders and drawing are the tree's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fededge_agent.machine.tables import transitions_table as agent_table
from fededge_server.machine.fleet.parts import transitions_table as coordinator_table
from tests.pages import page, program

ROOT = Path(__file__).resolve().parents[1]
PAGE = page("architecture.md")
SHIPPED = ("fededge", "server", "device_agent")
CODE = re.findall(r"`([^`\n]+)`", PAGE)
PATH = r"[a-z_]+/[\w/]*(\.\w+)?"
CONSTANTS = re.findall(r"((?:`[A-Z_]+`(?:,| and| or)? )+)(?:of|in) `([\w/]+\.py)`", PAGE)
PATHS = sorted({text.partition(": ")[0] for text in CODE if re.fullmatch(rf"{PATH}(: .*)?", text)})


def named() -> Iterator[tuple[str, str]]:
    """Each `path: name` of the page; a later `Class.name` belongs to the last path with it."""
    last: dict[str, str] = {}
    for text in CODE:
        path, colon, name = text.partition(": ")
        if colon and "/" in path:
            last[name.partition(".")[0]] = path
            yield path, name
        elif re.fullmatch(r"[A-Z]\w+\.\w+", text):
            yield last[text.partition(".")[0]], text


@cache
def names(path: str) -> frozenset[str]:
    """The functions, classes and methods of a Python file; the words of any other."""
    text = (ROOT / path).read_text("utf-8")
    if not path.endswith(".py"):
        return frozenset(re.findall(r"\w+", text))
    return frozenset(_defined(ast.parse(text)))


def _defined(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{prefix}{node.name}"
            yield from _defined(node, f"{prefix}{node.name}.")


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("path", "name"), sorted(set(named())))
def test_every_name_is_in_its_file(path: str, name: str) -> None:
    assert name in names(path)


@pytest.mark.parametrize(("constants", "path"), CONSTANTS)
def test_every_constant_is_in_its_file(constants: str, path: str) -> None:
    text = (ROOT / path).read_text("utf-8")
    for name in re.findall(r"\w+", re.sub(r"\b(?:and|or)\b", "", constants)):
        assert re.search(rf"^{name}\b.* = ", text, re.MULTILINE), f"{path} has no {name}"


def test_the_page_names_enough_to_be_worth_checking() -> None:
    assert len(set(named())) > 40
    assert ("`COMMANDS` and `FOLDERS` ", "fededge/cli/parser.py") in CONSTANTS
    assert ("server/machine/updates/updates.py", "Updates._refuse") in set(named())


def test_every_package_is_in_the_table_of_the_tree() -> None:
    table = PAGE.partition("## The tree")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `([\w/]+)/` \|", table, re.MULTILINE))
    packages = {
        str(path.parent.relative_to(ROOT))
        for top in SHIPPED
        for path in (ROOT / top).rglob("__init__.py")
    }
    inner = {name for name in packages if name.count("/") > 1}  # data/formats, models/networks
    assert packages - inner <= listed
    assert all((ROOT / name).is_dir() for name in listed)


@pytest.mark.parametrize(
    ("side", "table"), [("coordinator", coordinator_table()), ("agent", agent_table())]
)
def test_the_states_are_those_of_the_machines(side: str, table: str) -> None:
    place = PAGE.partition(f"<!-- {side} states: made by tests -->")[2].partition("<!-- end -->")[0]
    assert place.strip() == table.strip()


def test_the_steps_of_the_round_are_numbered_through() -> None:
    walk = PAGE.partition("## One round, file by file")[2].partition("\n## ")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", walk, re.MULTILINE)]
    assert numbers == [*range(1, 25)]


def test_the_drawing_is_what_the_program_draws_now() -> None:
    drawn = program("draw_architecture").drawing()
    assert (ROOT / "docs" / "architecture.svg").read_text("utf-8") == drawn, (
        "run: python docs/draw_architecture.py"
    )


def test_the_drawing_has_a_box_for_every_part_of_the_table() -> None:
    module = program("draw_architecture")
    boxes = set(re.findall(r'class="middle">([^<]+)<', module.drawing()))
    assert boxes == {module.label(name) for name in module.read_table()}


def test_an_import_that_follows_from_others_is_not_drawn() -> None:
    table = {"a": [], "b": ["a"], "c": ["a", "b"]}
    assert program("draw_architecture").reduced(table) == {"a": [], "b": ["a"], "c": ["b"]}
