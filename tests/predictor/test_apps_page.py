"""The page for app developers does what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from tests.predictor.conftest import LABELS, Maker

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "apps.md").read_text("utf-8")


@pytest.fixture
def state(colour: Maker, grey: Maker, tmp_path: Path) -> Path:
    """The state folders of two devices, and a few pictures."""
    colour.export(tmp_path / "state" / "models", seed=1)
    grey.export(tmp_path / "grey" / "models", seed=1)
    rng = np.random.default_rng(8)
    (tmp_path / "camera").mkdir()
    for name in ("photo.jpg", "camera/one.jpg", "camera/two.jpg"):
        small = PIL.Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
        small.resize((80, 60), PIL.Image.Resampling.BICUBIC).save(tmp_path / name)
    return tmp_path / "state"


def test_the_code_of_the_page_runs_as_it_stands(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(state.parent)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    label, probability, version = capsys.readouterr().out.split()
    assert label in LABELS
    assert 1 / 3 <= float(probability) <= 1
    assert re.fullmatch(r"000034-[0-9a-f]{16}", version)
    report = json.loads((state / "models/current/bad.json").read_text("utf-8"))
    assert list(report) == ["sha256", "version", "reason", "created"]
    assert all(f"`{key}`" in PAGE for key in report)
