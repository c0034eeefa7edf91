"""The page on methods names every hook there is, and its example runs as it is printed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from fededge.methods import METHODS
from fededge.methods.base import Method

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")


def test_the_tables_name_every_hook_with_its_arguments() -> None:
    hooks = {
        f"{name}({', '.join(hook.__code__.co_varnames[1 : hook.__code__.co_argcount])})"
        for name, hook in vars(Method).items()
        if callable(hook) and not name.startswith("_") and name != "require"
    }
    assert set(re.findall(r"^\| `(\w+\([^`]*\))` \|", PAGE, re.MULTILINE)) == hooks


def test_the_tables_name_every_declaration() -> None:
    declared = {
        name for name, kind in Method.__annotations__.items() if kind.startswith("ClassVar")
    }
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == declared


def test_the_example_runs_and_its_method_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "keepsake.py"
    path.write_text(example, encoding="utf-8")
    before = dict(METHODS)
    try:
        found = runpy.run_path(str(path), run_name="__main__")
    finally:
        METHODS.clear()
        METHODS.update(before)
    assert "keepsake" not in METHODS
    printed = capsys.readouterr().out.strip()
    assert printed.endswith("[1.0, 1.0]")
    assert f"It prints `{printed}`" in PAGE
    assert all("keepsake.last" in private for private in found["private"].values())
    assert found["memory"]["keepsake.velocity"].any()
