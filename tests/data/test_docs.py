"""docs/data.md names every source and every kind of split, and its program runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fededge.data import sources

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_every_source_has_an_example() -> None:
    text = PAGE.read_text(encoding="utf-8")
    headings = re.findall("^### (.*)", text, re.M)
    assert all(any(f"`{source}`" in heading for heading in headings) for source in sources())
    assert set(re.findall('^source = "(.*)"', text, re.M)) <= set(sources())
    for split in ("dirichlet:A", "pathological:K", "incomplete", "incomplete:2-5", "uniform"):
        assert f"`{split}`" in text


def test_the_program_draws_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall("```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})
    assert (tmp_path / "partition.png").stat().st_size > 10_000
    assert PAGE.with_name("partition.png").stat().st_size < 100_000
