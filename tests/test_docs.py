"""The README and the pages tell the truth: what they name exists, and what exists is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fededge import methods
from fededge.cli import main
from fededge.cli.parser import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *ROOT.glob("docs/*.md"),
]


def test_the_readme_names_every_method() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in methods.METHODS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_pages_exist(page: Path) -> None:
    for command in re.findall(r"^(?:.*= ?)?fededge ([a-z-]+)", page.read_text(), re.MULTILINE):
        assert command in COMMANDS, f"{page.name}: fededge {command}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_the_changelog_has_the_four_kinds_of_changes() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    kinds = re.findall("^### (.*)$", text, re.MULTILINE)
    assert kinds == ["Added", "Changed", "Fixed", "Removed"]


def test_every_command_is_in_a_page() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [command for command in COMMANDS if f"fededge {command}" not in text] == []
