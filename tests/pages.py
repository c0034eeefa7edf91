"""The code blocks of a documentation page, as a reader would copy them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["blocks", "page", "write_example"]

DOCS = Path(__file__).resolve().parents[1] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text: str, language: str = "") -> list[str]:
    """The blocks of one language; without one, those that are commands or output."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [content for kind, content in found if kind == language]


def write_example(folder: Path) -> Path:
    """The method of docs/methods.md, as the file that the page says it is."""
    path = folder / "keepsake.py"
    path.write_text(blocks(page("methods.md"), "python")[0], encoding="utf-8")
    return path
