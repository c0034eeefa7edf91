"""The page on methods names every hook there is, and its example runs as it is printed."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from fededge.cli import main
from fededge.cli.operation.audit import read_ledger
from fededge.method.base import Method
from fededge.methods import METHODS, method
from tests.pages import blocks, page, write_example

PAGE = page("methods.md")


def commands(name: str) -> list[list[str]]:
    """Every `fededge NAME …` that the page shows, in words."""
    lines = "".join(blocks(PAGE)).splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"fededge {name} ")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a folder outside of the package, with the page's file in it."""
    write_example(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, example = blocks(PAGE, "python")
    path = folder / "two_devices.py"
    path.write_text(example, encoding="utf-8")
    found = runpy.run_path(str(path), run_name="__main__")
    assert "keepsake" not in METHODS
    printed = capsys.readouterr().out.strip()
    assert printed.endswith("[1.0, 1.0]")
    assert f"It prints `{printed}`" in PAGE
    assert all("keepsake.last" in private for private in found["private"].values())
    assert found["state"]["keepsake.velocity"].any()


def test_the_ways_to_name_it_are_ways_to_name_it(folder: Path) -> None:
    (folder / "my").mkdir()
    (folder / "keepsake.py").rename(folder / "my" / "keepsake.py")
    write_example(folder)
    texts = re.findall(r"`([^`\n]*keepsake\.py:Keepsake[^`\n]*)`", PAGE)
    assert len(texts) >= 3
    for text in texts:
        assert "keepsake" in method(text).files


def test_it_is_simulated_by_the_command_of_the_page(folder: Path) -> None:
    (command,) = commands("simulate")
    assert main([*command, "--json", "result.json"]) == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["experiment"]["method_files"] == method("keepsake.py:Keepsake").files
    assert all(row["moved"] > 0 for row in result["rounds"])


@pytest.mark.slow
def test_it_is_compared_and_deployed_by_the_commands_of_the_page(folder: Path) -> None:
    (compare,), (demo,) = commands("compare"), commands("demo")
    assert main([*compare, "--no-plots", "--json", "compared.json"]) == 0
    assert main([*demo, "--json", "demo.json"]) == 0
    _, own = json.loads((folder / "compared.json").read_text())
    assert own["method"] == "keepsake.py:Keepsake"
    assert own["mean"]["moved"] > 0
    scalars = read_ledger(folder / "fededge-demo" / "device-1" / "ledger.json")
    assert scalars["scalar moved"] > 0
