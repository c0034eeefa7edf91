"""`fededge versions`: what it lists, shows and exports, from the folder of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fededge.cli import main
from fededge.config import CoordinatorConfig, load
from fededge.data.local import model_spec
from fededge.errors import StoreError
from fededge.flat import FlatModel
from fededge.models import build_for
from fededge.predictor import Predictor
from fededge_server.model.network import Network
from fededge_server.model.version_list import find
from fededge_server.model.versions import Versions
from fededge_server.store import Store


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code = main(["versions", *words])
    told = capsys.readouterr()
    assert code == 0, told.err
    return told.out


def test_the_list_has_dates_participants_and_what_was_changed(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = json.loads(said(capsys, "list", "--config", str(config), "--json"))
    assert [one["round"] for one in (first, second, third)] == [0, 1, 2]
    assert [one["participants"] for one in (first, second, third)] == [0, 2, 0]
    assert {one["date"] for one in (first, second, third)} == {1.8e9}
    assert (second["seconds"], second["kept"]) == (12.5, True)
    assert third["restored"] == second["version"]
    assert third["changes"] == [f"rollback: back to {second['version']}"]
    listed = said(capsys, "list", "--config", str(config))
    assert f"{third['version']}  rollback: back to {second['version']}" in listed
    rows = [line for line in listed.splitlines() if "2027-" in line]
    assert len(rows) == 3
    assert max(map(len, rows)) <= 80


def test_one_version_is_shown_with_its_participants(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = said(capsys, "show", "000001", "--config", str(config))
    assert "2 participants, in 12 s" in shown
    assert "gate-2: examples 12" in shown
    found = json.loads(said(capsys, "show", "000001", "--config", str(config), "--json"))
    assert found["reports"] == {"gate-1": {"examples": 30.0}, "gate-2": {"examples": 12.0}}
    assert "after 2 rounds" in said(capsys, "show", "--config", str(config)), "the newest"


def test_a_version_that_is_not_there_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["versions", "show", "000007", "--config", str(config)]) != 0
    assert "there is no version '000007'; `fededge versions list` shows" in capsys.readouterr().err
    with pytest.raises(StoreError, match="several versions begin with '00000'"):
        find(config.parent / "state", "00000")


def test_a_pin_is_shown_and_ends(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = find(config.parent / "state", "000000")
    words = ("--config", str(config))
    assert said(capsys, "pin", "000000", *words).startswith(f"{first.version} is pinned: its model")
    assert json.loads(said(capsys, "pin", "000000", *words, "--json")) == {
        "changed": False,
        "text": f"{first.version} is pinned already",
    }
    assert said(capsys, "list", *words).splitlines()[1].rstrip().endswith("pinned")
    assert "pinned: its model is kept" in said(capsys, "show", "000000", *words)
    said(capsys, "unpin", "000000", *words)
    assert "pinned" not in said(capsys, "list", *words)
    assert not main(["history", *words])
    assert f"unpin {first.version}" in capsys.readouterr().out


def test_a_new_run_begins_with_the_exported_weights(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exported, named in the file of a new coordinator, and listed there."""
    path = tmp_path / "start.safetensors"
    told = said(capsys, "export", "000001", "--config", str(config), "--weights", str(path))
    second = find(config.parent / "state", "000001")
    assert told == f"{path}: the weights of version {second.version}\n"
    new = tmp_path / "new.toml"
    text = config.read_text().replace('"state"', '"new"').replace('"gates"', '"doors"')
    new.write_text(f'{text}weights = "start.safetensors"\n')
    run = load(new, CoordinatorConfig)
    store = Store(Path(run.state))
    store.open()
    network = Network(run.model, run.data, run.method, run.seed)
    Versions.resume(run, store, network, network.start())
    store.close()
    shown = said(capsys, "list", "--config", str(new))
    came = f"warm start: version {second.version} of federation gates, by start.safetensors"
    assert f"000000-{second.sha256[:16]}  {came}" in shown
    assert came in said(capsys, "show", "000000", "--config", str(new))
    assert second.sha256 in said(capsys, "show", "000000", "--config", str(new))


def test_an_export_goes_to_one_place(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["versions", "export", "--config", str(config)])
    assert "one of the arguments --out --weights is required" in capsys.readouterr().err


def test_rollback_is_asked_for_when_no_coordinator_runs(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "it goes back when it starts" in said(
        capsys, "rollback", "000001", "--config", str(config)
    )


def test_the_exported_version_gives_the_networks_own_probabilities(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ("export", "000000", "--config", str(config), "--out", str(out), "--json")
    manifest = json.loads(said(capsys, *words))
    assert (manifest["round"], manifest["compared"], manifest["device"]) == (0, 64, "coordinator")
    assert manifest["difference"] < 1e-4
    first = find(config.parent / "state", "000000")
    assert manifest["weights"] == first.sha256
    assert manifest["run"] == Store(config.parent / "state").run() != ""
    wanted = load(config, CoordinatorConfig)
    net = FlatModel(build_for(model_spec(wanted.model, wanted.data), wanted.seed), trains=False)
    image = np.random.default_rng(3).integers(0, 256, (8, 8), dtype=np.uint8)
    scaled = (image.astype(np.float32) / 255 - 0.5) / 0.25
    with torch.no_grad():
        logits = net.module.eval()(torch.from_numpy(scaled)[None, None])
    expected = torch.softmax(logits, 1)[0].numpy()
    found = Predictor(out).predict(image)
    assert found.probability == pytest.approx(float(expected.max()), abs=1e-5)
    assert main(["versions", *words]) != 0
    assert "it is not empty; choose another folder" in capsys.readouterr().err
