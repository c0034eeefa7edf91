"""The picture of a partition: its file, its dots, and what it leaves alone."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fededge.cli import main
from fededge.data import plot_partition
from fededge.data.plot import LARGEST_DOT, _draw, _examples, _ticks
from fededge.errors import ConfigError

COUNTS = np.array([[40, 0, 10], [0, 20, 0]])
LABELS = ("bus", "car", "van")


@pytest.mark.parametrize(
    ("name", "magic"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")]
)
def test_the_ending_decides_the_format(tmp_path: Path, name: str, magic: bytes) -> None:
    plot_partition(COUNTS, LABELS, tmp_path / name, "two devices")
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_area_is_the_number_of_samples() -> None:
    """Dots only where there are samples; 40, 10 and 20 samples have areas 4 : 1 : 2."""
    (axes,) = _draw(COUNTS, LABELS, "title").axes
    dots = axes.collections[0]
    assert dots.get_offsets().tolist() == [[0, 0], [0, 2], [1, 1]]
    assert (dots.get_sizes() / LARGEST_DOT).tolist() == [1, 0.25, 0.5]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("device", "class")
    assert [text.get_text() for text in axes.get_yticklabels()] == list(LABELS)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["40", "10", "2"]


def test_legend_and_ticks_are_round() -> None:
    assert [_examples(most) for most in (1, 9, 592)] == [[1], [9, 2, 1], [500, 100, 20]]
    assert [_ticks(count).step for count in (1, 40, 41, 100, 1000)] == [1, 1, 2, 5, 50]


def test_no_global_backend_is_chosen(tmp_path: Path) -> None:
    """A program that plots keeps its own choice of backend: pyplot is not even imported."""
    code = (
        "import sys, numpy, pathlib; from fededge.data import plot_partition\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"plot_partition(numpy.ones((2, 2)), 'ab', pathlib.Path({str(tmp_path / 'a.png')!r}), '')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"install fededge\[plot\]"):
        plot_partition(COUNTS, LABELS, tmp_path / "a.png", "")


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a.jpg: a picture must end in one of pdf, png, svg"):
        plot_partition(COUNTS, LABELS, tmp_path / "a.jpg", "")
    with pytest.raises(ConfigError, match=r"\[2, 3\] of 2 classes"):
        plot_partition(COUNTS, LABELS[:2], tmp_path / "a.png", "")


def test_many_classes_are_counted_instead_of_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thirty classes on two devices, fifteen each: no terminal has thirty columns."""
    labels = np.arange(300) % 30
    np.savez(tmp_path / "own.npz", x=np.zeros((300, 8, 8), np.uint8), y=labels)
    command = ["partition", "--data", f"npz:{tmp_path / 'own.npz'}", "--devices", "2"]
    assert main([*command, "--split", "pathological:15"]) == 0
    rows = [line.split("│")[1:4] for line in capsys.readouterr().out.splitlines() if "│" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells == [["0", "15", "150"], ["1", "15", "150"]]
