"""`make lint` beside ruff and mypy: links, spelling, dead code; and the same before a commit."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.pages import program

ROOT = Path(__file__).resolve().parents[1]
LINKS = program("check_links")
SETTINGS = msgspec.toml.decode((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
PAGE = """# A page

## Where is …?

## `make` it: twice

## Again

## Again

```
# no heading [no link](nowhere.md)
```
"""


def found(folder: Path, link: str) -> list[str]:
    path = folder / "page.md"
    path.write_text(f"{PAGE}\n[text]({link})\n", "utf-8")
    return [*LINKS.broken_links(path)]


@pytest.mark.parametrize("page", LINKS.pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [*LINKS.broken_links(page)] == []


@pytest.mark.parametrize(
    "link", ["#where-is-", "#make-it-twice", "page.md#again-1", "https://x.org/#y", "page.md"]
)
def test_a_good_link_is_none_of_them(link: str, tmp_path: Path) -> None:
    assert found(tmp_path, link) == []


@pytest.mark.parametrize("link", ["#again-2", "other.md", "page.md#no-heading-no-link"])
def test_a_broken_link_is_named(link: str, tmp_path: Path) -> None:
    (sentence,) = found(tmp_path, link)
    assert link.partition("#")[2] in sentence


def test_a_spelling_mistake_would_be_noticed(tmp_path: Path) -> None:
    wrong = "receives".replace("ei", "ie")
    (tmp_path / "page.md").write_text(f"the coordinator {wrong} an update\n")
    command = [sys.executable, "-m", "codespell_lib", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert f"{wrong} ==> receives" in done.stdout


def test_dead_code_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "dead.py").write_text("def nobody_calls_this() -> None: ...\n")
    settings = ["--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
    command = [sys.executable, "-m", "vulture", *settings]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "unused function 'nobody_calls_this'" in done.stdout


def test_every_name_that_the_check_for_dead_code_allows_is_still_in_use() -> None:
    packages = SETTINGS["vulture"]["paths"]
    text = "\n".join(
        path.read_text("utf-8") for name in packages for path in (ROOT / name).rglob("*.py")
    )
    words = set(re.findall(r"\w+", text))
    names = SETTINGS["vulture"]["ignore_names"]
    assert [name for name in names if not fnmatch.filter(words, name)] == []


def test_a_commit_is_checked_by_the_programs_of_make_lint() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("$(BIN)", ".venv/bin")
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    entries = re.findall("^ *entry: (.*)$", hooks, re.MULTILINE)
    commands = [entry.removesuffix(" --force-exclude") for entry in entries]
    assert [c for c in commands if f"\t{c}\n" not in makefile and c != "make lint"] == []
    assert {"codespell", "vulture", "ruff"} <= {Path(c.split()[0]).name for c in commands}
