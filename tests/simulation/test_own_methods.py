"""Methods of a user's own in experiments: kept results know their file, and workers load it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fededge._internal import own_files
from fededge.cli import main
from fededge.errors import MethodError
from fededge.simulation import ProcessExecutor
from fededge.simulation.experiment import Experiment
from fededge.simulation.results import result_name
from fededge.simulation.runs import load_setup, run
from tests.pages import write_example

FLAGS = ["--limit=400", "--devices=4", "--participants=2", "--rounds=1", "--epochs=1"]


def new_process() -> None:
    """Files are imported once in a process: forget them, as another process would not know them."""
    own_files.imported.cache_clear()


def results(folder: Path) -> dict[str, str]:
    return {path.name: json.loads(path.read_text())["model_sha256"] for path in folder.iterdir()}


def test_a_kept_result_is_of_this_content_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_example(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ["compare", "--methods", "keepsake.py:Keepsake", "--seeds", "0", "--no-plots", *FLAGS]
    for _ in range(2):
        new_process()
        assert main([*command, "--out", "results"]) == 0
    before = results(tmp_path / "results")
    assert len(before) == 1
    path.write_text(path.read_text().replace("return w + velocity", "return w - velocity"))
    new_process()
    assert main([*command, "--out", "results"]) == 0
    after = results(tmp_path / "results")
    assert len(after) == 2
    assert before.items() < after.items()
    assert len(set(after.values())) == 2


def test_a_setting_that_came_later_leaves_the_names_of_earlier_results() -> None:
    """The name is of the time before `clip_norm` and `method_files`; both count where they are."""
    base = Experiment(method="fedprox(mu=0.1)", seed=3)
    assert result_name(base) == "fedprox-mu-0-1-seed3-ba0164283f"
    others = [
        Experiment(method="fedprox(mu=0.1)", seed=3, clip_norm=1.0),
        Experiment(method="fedprox(mu=0.1)", seed=3, method_files={"a": "b"}),
    ]
    assert len({result_name(base), *map(result_name, others)}) == 3


def test_a_path_in_a_file_of_settings_is_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_example(tmp_path)
    (tmp_path / "experiment.toml").write_text('method = "keepsake.py:Keepsake"\nclip_norm = 10.0\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    command = ["simulate", "--config", "../experiment.toml", *FLAGS, "--json", "result.json"]
    assert main(command) == 0
    setting = json.loads(Path("result.json").read_text())["experiment"]
    assert list(setting["method_files"]) == ["keepsake"]
    assert setting["clip_norm"] == 10.0


def test_a_worker_refuses_a_file_that_has_changed(tmp_path: Path) -> None:
    path = write_example(tmp_path)
    setup = load_setup(Experiment(method=f"{path}:Keepsake", limit=200, devices=2))
    executor = ProcessExecutor(setup, 1)
    path.write_text(f"{path.read_text()}\n# another line\n")
    try:
        with pytest.raises(MethodError, match="has changed since the run began"):
            executor.measure([torch.zeros(1)])
    finally:
        executor.stop()


@pytest.mark.slow
def test_workers_load_the_file_and_change_nothing(tmp_path: Path) -> None:
    text = f"{write_example(tmp_path)}:Keepsake(mu=0.05)+fedprox"
    chosen = Experiment(method=text, limit=400, devices=4, participants=2, rounds=2, epochs=1)
    (*_, alone), (*_, together) = run(chosen), run(chosen, workers=2)
    assert alone.model_sha256 == together.model_sha256


BUGGY = """
from dataclasses import dataclass
from fededge.methods import Method

@dataclass(frozen=True)
class Buggy(Method):
    name = "buggy"

    def {hook}:
        return {value}
"""


@pytest.mark.parametrize(
    ("hook", "value", "sentence"),
    [
        (
            "finish(self, r)",
            "r.nonsense",
            "buggy.py, line 10: AttributeError: 'TurnView' object has",
        ),
        ("weight(self, scalars)", "1 / 0", "buggy.py, line 10: ZeroDivisionError: division by"),
    ],
)
def test_a_bug_in_the_file_is_a_sentence_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hook: str, value: str, sentence: str
) -> None:
    path = tmp_path / "buggy.py"
    path.write_text(BUGGY.format(hook=hook, value=value))
    assert main(["simulate", *FLAGS, "--method", f"{path}:Buggy"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
