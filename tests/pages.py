"""The pages: their code blocks, as a reader would copy them, and the programs beside them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

__all__ = ["blocks", "page", "program", "write_example"]

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


def program(name: str) -> ModuleType:
    """A program of docs/, imported."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
