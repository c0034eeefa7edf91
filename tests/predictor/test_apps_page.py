"""The commands of docs/apps.md work."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from fededge import Predictor
from fededge.cli import main
from fededge.predictor.http import endpoint as endpoint_module
from fededge.predictor.http.endpoint import Endpoint
from tests.pages import blocks
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
    codes = blocks(PAGE, "python")
    assert len(codes) == 2
    names: dict[str, object] = {}
    for block in codes:
        exec(block, names)
    label, probability, version = capsys.readouterr().out.split()
    assert label in LABELS
    assert 1 / 3 <= float(probability) <= 1
    assert re.fullmatch(r"000034-[0-9a-f]{16}", version)
    report = json.loads((state / "models/current/bad.json").read_text("utf-8"))
    assert list(report) == ["sha256", "version", "reason", "created"]
    assert all(f"`{key}`" in PAGE for key in report)


def test_the_shell_commands_of_the_page_run_as_they_stand(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(state.parent)
    (state.parent / "camera").rename("photos")
    found = re.findall(r"^fededge (predict .*)$", PAGE, re.MULTILINE)
    assert len(found) == 4
    lines = []
    for command in found:
        assert main(command.partition(" >")[0].split()) == 0
        lines.append(len(capsys.readouterr().out.splitlines()))
    assert lines == [1, 2, 3, 2]  # one picture; two; a header and two; two


def test_the_requests_of_the_page_get_the_answers_that_it_promises(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests are sent with curl, on another port."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    monkeypatch.chdir(state.parent)
    endpoint = Endpoint(Predictor(state), "127.0.0.1", 0)
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    try:
        (commands,) = blocks(PAGE, "shell")
        port = f":{endpoint.server_port}"
        answers = [curl(line.replace(":8117", port)) for line in commands.splitlines()]
    finally:
        endpoint.stop()
        thread.join(30)
    picture, pixels, about, health = answers
    (example,) = blocks(PAGE, "json")
    assert picture.keys() == json.loads(example).keys()
    assert len(picture["top"]) == 2
    assert (picture["label"] in LABELS, pixels["label"] in LABELS) == (True, True)
    assert about["labels"] == list(LABELS)
    assert health == {"status": "ok", "version": picture["version"]}


def curl(command: str) -> dict[str, Any]:
    words = [*shlex.split(command), "--silent", "--show-error"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_every_status_of_the_endpoint_is_on_the_page() -> None:
    source = Path(endpoint_module.__file__).read_text()
    used = {HTTPStatus[name].value for name in re.findall(r"HTTPStatus\.([A-Z_]+)\b", source)}
    ours = used - {HTTPStatus.OK, HTTPStatus.INTERNAL_SERVER_ERROR} | {501, 503}
    table = PAGE[PAGE.index("## Over HTTP") : PAGE.index("## In another")]
    assert [
        status for status in sorted(ours) if not re.search(rf"^\|.*\b{status}\b", table, re.M)
    ] == []
