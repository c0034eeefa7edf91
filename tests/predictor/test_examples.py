"""The page for app developers and the apps in `examples/` do what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from fededge import Predictor
from tests.predictor.conftest import LABELS, Maker, bare

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
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


def test_the_python_app_labels_a_folder_without_torch(state: Path) -> None:
    code = "import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    folder = state.parent / "camera"
    process = bare(code, EXAMPLES / "python_app.py", state, folder, "--once")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    provider, *lines = out.splitlines()
    predictor = Predictor(state)
    assert provider == str(predictor.about.provider)
    for name, line in zip(("one.jpg", "two.jpg"), lines, strict=True):
        assert line.startswith(f"{name}: {predictor.predict(folder / name).label} ")
        assert line.endswith(f", {predictor.version}")


def node(*arguments: object, folder: Path) -> str:
    """The output of a script in a folder of examples, if its packages are installed there."""
    if shutil.which("node") is None or not (folder / "node_modules").exists():
        pytest.skip(f"needs Node.js, and npm install in {folder.relative_to(ROOT)}")
    command = ["node", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("device", ["state", "grey"])
def test_the_node_app_says_what_the_predictor_says(state: Path, device: str) -> None:
    """It scales with another library, so up to a little."""
    device_state, picture = state.parent / device, state.parent / "photo.jpg"
    output = node("app.mjs", device_state, picture, folder=EXAMPLES / "node")
    expected = Predictor(device_state).predict(picture)
    got = re.fullmatch(r".*photo\.jpg: (\S+) ([0-9.]+)\n", output)
    assert got is not None
    assert got[1] == expected.label
    assert float(got[2]) == pytest.approx(expected.probability, abs=0.05)


WEB = """
import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-web";
import { classify, load } from "./model.mjs";
const [folder, pixels] = process.argv.slice(1);
const manifest = JSON.parse(readFileSync(`${folder}/manifest.json`, "utf8"));
const session = await load(ort, readFileSync(`${folder}/model.onnx`), manifest);
const rgba = new Uint8Array(readFileSync(pixels));
console.log(JSON.stringify(await classify(ort, session, manifest, rgba)));
"""


@pytest.mark.parametrize("device", ["state", "grey"])
def test_the_web_app_says_what_the_predictor_says(
    state: Path, device: str, pixels: np.ndarray
) -> None:
    """The part without the page, with ONNX Runtime Web, on the pixels of a canvas."""
    rgba = np.concatenate([pixels, np.full((1, 8, 10), 255, np.uint8)]).transpose(1, 2, 0)
    (state / "rgba").write_bytes(rgba.tobytes())
    current = state.parent / device / "models" / "current"
    script = ("--input-type=module", "--eval", WEB, "--", current, state / "rgba")
    output = node(*script, folder=EXAMPLES / "web")
    got = dict(json.loads(output))
    assert got == pytest.approx(dict(Predictor(current).predict(rgba).top()), abs=1e-5)
