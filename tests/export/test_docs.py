from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest
from torch import Tensor, nn

from fededge.cli import main
from fededge.config import ExportConfig, RolloutConfig
from fededge.export import ModelManifest, ModelRegistry, Origin, Template
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec
from tests.pages import blocks

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "onnx.md").read_text("utf-8")


def test_the_code_of_the_page_runs_as_it_stands(
    network: nn.Module,
    spec: ModelSpec,
    origin: Origin,
    images: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All blocks, one after the other; the first, an app's, does so without FedEdge."""
    flat = FlatModel(network)
    monkeypatch.chdir(tmp_path)
    ModelRegistry(Path("models")).export(flat, Template.trace(network, spec), origin, images)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    assert "fededge" not in blocks[0]
    assert len(list(filter(None, blocks[0].splitlines()))) == 6
    names = {"flat": flat, "spec": spec, "origin": origin, "images": images}
    for block in blocks:
        exec(block, names)
    assert capsys.readouterr().out.strip() in spec.labels
    assert Path("models/current").readlink() == Path("2")
    assert len(list(Path("templates").iterdir())) == 1


def test_every_key_of_the_manifest_is_explained_and_no_other() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    explained = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert explained == set(ModelManifest.__struct_fields__)


def test_the_commands_of_the_page_run_as_they_stand(
    network: nn.Module,
    spec: ModelSpec,
    origin: Origin,
    images: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a device with models 40 to 42; each says which one is current then."""
    flat, models = FlatModel(network), ModelRegistry(tmp_path / "state" / "models")
    template = Template.trace(network, spec)
    (models.folder / "39").mkdir(parents=True)
    for _ in range(3):
        flat.load(1.1 * flat.vector)
        models.export(flat, template, origin, images[:4])
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```\n(fededge export .*?)```", PAGE, re.DOTALL)
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(commands) == 5
    current = []
    for command in commands:
        assert main(command[1:]) == 0
        current.append(models.number())
    assert current == [42, 41, 41, 41, 40]
    assert "model 41 is bad and not used again" in capsys.readouterr().out


def test_the_settings_of_the_page_are_those_that_there_are() -> None:
    export, rollout = (msgspec.toml.decode(block) for block in blocks(PAGE, "toml"))
    assert msgspec.convert(export["export"], ExportConfig).prefer == "int8"
    assert msgspec.convert(rollout["rollout"], RolloutConfig).abort == 0.2
    assert export["export"].keys() == set(ExportConfig.__struct_fields__)
    assert rollout["rollout"].keys() == set(RolloutConfig.__struct_fields__)
