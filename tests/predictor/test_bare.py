"""An app needs only ONNX Runtime and numpy: tests in an environment with just these two."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import venv
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import fededge
from tests.predictor.conftest import Maker

APP = """
import sys
import fededge
assert not {"numpy", "onnxruntime"} & sys.modules.keys(), "import fededge alone loads nothing"
import numpy as np
predictor = fededge.Predictor(sys.argv[1])
rng = np.random.default_rng(3)
print(*predictor.predict(rng.integers(0, 256, (3, 8, 10), np.uint8)).probabilities)
print(predictor.predict(rng.integers(0, 256, (90, 120, 3), np.uint8)).label)
try:
    predictor.predict(sys.argv[2])
except fededge.errors.ConfigError as error:
    print(error)
"""


def needed(*names: str) -> dict[str, importlib.metadata.Distribution]:
    """The named distributions and all that they require, without extras."""
    found: dict[str, importlib.metadata.Distribution] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            required = [r for r in found[name].requires or [] if "extra ==" not in r]
            todo += [re.split(r"[^\w.-]", requirement)[0] for requirement in required]
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with links to these two, to what they require, and to `fededge`."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (place,) = folder.glob("lib/python3.*/site-packages")
    for distribution in needed("onnxruntime", "numpy").values():
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            (place / top).symlink_to(Path(str(distribution.locate_file(top))))
    (place / "fededge").symlink_to(Path(fededge.__file__).parent)
    return folder / "bin" / "python"


def run(python: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-I", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("absent", ["torch", "PIL", "msgspec", "rich", "onnx", "paho"])
def test_the_environment_is_as_bare_as_it_claims(python: Path, absent: str) -> None:
    assert "ModuleNotFoundError" in run(python, "-c", f"import {absent}").stderr


def test_arrays_of_any_size_are_predicted_and_files_ask_for_pillow(
    python: Path, models: Path, colour: Maker, tmp_path: Path
) -> None:
    PIL.Image.new("RGB", (10, 8)).save(tmp_path / "photo.png")
    done = run(python, "-c", APP, models / "current", tmp_path / "photo.png")
    assert (done.returncode, done.stderr) == (0, "")
    probabilities, label, sentence = done.stdout.splitlines()
    pixels = np.random.default_rng(3).integers(0, 256, (3, 8, 10), np.uint8)
    expected = colour.expected(1, pixels)
    np.testing.assert_allclose([float(p) for p in probabilities.split()], expected, atol=1e-6)
    assert label in colour.spec.labels
    assert sentence == (
        "image files and PIL images need Pillow, which cannot be imported (No module named 'PIL'); "
        "pip install pillow"
    )


def test_the_command_says_it_once(python: Path, models: Path, tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        PIL.Image.new("RGB", (10, 8)).save(tmp_path / name)
    done = run(python, "-m", "fededge", "predict", models, tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fededge: image files and PIL images need Pillow")
    assert len(done.stderr.splitlines()) == 1
