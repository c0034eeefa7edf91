"""The limits of CONTRIBUTING.md hold: the size of modules and functions of the shipped packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_imports import FOLDERS, modules

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES, MANY_LINES = 300, 35


def long_functions(module: str, source: str) -> Iterator[str]:
    """Functions whose body, without its docstring, has more lines than a function should."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[ast.get_docstring(node) is not None and len(node.body) > 1]
            if (node.end_lineno or 0) - first.lineno >= MANY_LINES:
                yield f"{module}.{node.name}"


@pytest.mark.parametrize(
    ("module", "path"), [*modules(FOLDERS)], ids=lambda value: str(value)[-60:]
)
def test_a_module_and_its_functions_are_short_enough_to_be_read(module: str, path: Path) -> None:
    source = path.read_text("utf-8")
    lines = len(source.splitlines())
    assert lines <= MOST_LINES, f"{module} has {lines} lines"
    assert [*long_functions(module, source)] == []


def test_a_long_function_would_be_noticed() -> None:
    body = "\n".join(f"    x = {number}" for number in range(MANY_LINES))
    assert [*long_functions("m", f"def f():\n{body}\n")] == []
    assert [*long_functions("m", f"def f():\n{body}\n    return x\n")] == ["m.f"]
    assert [*long_functions("m", f'def f():\n    """One.\n\n    Two.\n    """\n{body}\n')] == []


def test_the_limits_are_those_that_contributors_are_told() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert f"more than {MANY_LINES} rare; modules have at most {MOST_LINES} lines" in text


def test_the_tree_of_the_page_for_contributors_names_every_folder() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    listed = re.findall(r"^(\w+)/ ", text, re.MULTILINE)
    rest = {"benchmarks", "csrc", "docs", "examples", "tests"}
    assert set(listed) == {*FOLDERS.values(), *rest}
    assert all((ROOT / name).is_dir() for name in listed)
