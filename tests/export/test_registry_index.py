"""The current model: promoted, rolled back, pinned, reported bad; by the agent or by hand."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import Tensor, nn

from fededge.cli import main
from fededge.errors import StoreError
from fededge.export import Candidate, ModelRegistry, Origin, Template, make_candidate
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec


class Shelf:
    """A device's models, whose weights follow from a number."""

    def __init__(self, folder: Path, network: nn.Module, spec: ModelSpec, origin: Origin) -> None:
        self.models = ModelRegistry(folder / "models")
        self.flat = FlatModel(network)
        self.template = Template.trace(network, spec)
        self.origin = origin
        self.start = self.flat.vector.clone()

    def candidate(self, scale: float, images: Tensor, **facts: Any) -> Candidate:
        self.flat.load(scale * self.start)
        origin = msgspec.structs.replace(self.origin, **facts)
        return make_candidate(self.flat, self.template, origin, images)


@pytest.fixture
def shelf(tmp_path: Path, network: nn.Module, spec: ModelSpec, origin: Origin) -> Shelf:
    return Shelf(tmp_path, network, spec, origin)


@pytest.fixture
def models(shelf: Shelf, images: Tensor) -> ModelRegistry:
    """Three models, of rounds 1 to 3, each promoted in its turn."""
    for number in (1, 2, 3):
        shelf.models.publish(shelf.candidate(number, images[:4], round=number))
    return shelf.models


def events(models: ModelRegistry) -> list[tuple[str, int]]:
    return [(entry.event, entry.number) for entry in models.index().history]


def test_a_rollback_goes_back_step_by_step_and_the_history_tells_it(models: ModelRegistry) -> None:
    assert models.roll_back("by hand") == 2
    assert models.number() == 2
    assert models.roll_back() == 1
    assert models.roll_back() is None
    assert models.number() == 1
    assert events(models)[-2:] == [("rolled back", 2), ("rolled back", 1)]
    assert models.index().history[-2].reason == "by hand"


def test_after_a_rollback_the_next_model_takes_over_and_a_rollback_leads_back_again(
    models: ModelRegistry, shelf: Shelf, images: Tensor
) -> None:
    models.roll_back()
    models.publish(shelf.candidate(4, images[:4]))
    assert models.number() == 4
    assert models.roll_back() == 2


def test_a_bad_model_is_rolled_back_and_its_weights_are_never_promoted_again(
    models: ModelRegistry, shelf: Shelf, images: Tensor
) -> None:
    """Written again, in another round, the file has another hash: the weights are the same."""
    assert models.mark_bad(3, "all trucks") == 2
    number = models.add(shelf.candidate(3, images[:4], round=9))
    with pytest.raises(StoreError, match=f"model {number} was reported bad"):
        models.promote(number)
    with pytest.raises(StoreError, match="was reported bad"):
        models.pin(3)
    assert models.number() == 2
    assert models.mark_bad(2, "this one too") == 1
    assert len(models.index().bad) == 2


def test_a_rollback_skips_bad_models(models: ModelRegistry) -> None:
    models.mark_bad(2, "not current, and yet bad")
    assert models.number() == 3
    assert models.roll_back() == 1


def test_marking_a_model_bad_and_rolling_back_is_one_change(
    models: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a model that was promoted in between would be rolled back in the bad one's place."""
    roll_back, held = ModelRegistry._roll_back, []

    def watched(self: ModelRegistry, reason: str, fits: Any) -> int | None:
        with (self.folder / ".lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(reason)
        return roll_back(self, reason, fits)

    monkeypatch.setattr(ModelRegistry, "_roll_back", watched)
    assert models.mark_bad(3, "all trucks") == 2
    assert models.roll_back("by hand") == 1
    assert held == ["all trucks", "by hand"]


def test_a_pipe_in_place_of_a_model_does_not_block(models: ModelRegistry) -> None:
    (models.path(2) / "model.onnx").unlink()
    os.mkfifo(models.path(2) / "model.onnx")
    assert models.roll_back() == 1
    with pytest.raises(StoreError, match=r"2/model\.onnx: damaged, it is a pipe"):
        models.pin(2)


def test_a_manifest_names_files_beside_it_and_no_others(models: ModelRegistry) -> None:
    path = models.path(3) / "manifest.json"
    about = json.loads(path.read_bytes())
    about["variants"] = {
        "int8": {"file": "../2/model.onnx", "sha256": about["sha256"], "size": 1}
        | {"accuracy": None, "difference": 0}
    }
    path.write_text(json.dumps(about))
    with pytest.raises(StoreError, match=r"not a manifest .*file"):
        models.check(3)


def test_the_only_model_stays_current_though_it_is_bad(shelf: Shelf, images: Tensor) -> None:
    shelf.models.publish(shelf.candidate(1, images[:4]))
    assert shelf.models.mark_bad(1, "why not") == 1
    assert shelf.models.publish(shelf.candidate(2, images[:4])) == shelf.models.current()


def test_a_pinned_model_stays_until_it_is_unpinned(
    models: ModelRegistry, shelf: Shelf, images: Tensor
) -> None:
    models.pin(1)
    number = models.add(shelf.candidate(4, images[:4]))
    assert not models.promote(number)
    assert models.number() == 1
    models.unpin()
    assert models.promote(number)
    assert ("held", number) in events(models)


def test_a_pinned_model_that_is_bad_is_not_kept(models: ModelRegistry) -> None:
    models.pin(2)
    assert models.mark_bad(2, "bad") == 1
    assert models.index().pinned is None


def test_a_pinned_model_is_not_removed(models: ModelRegistry, shelf: Shelf, images: Tensor) -> None:
    models.pin(1)
    for scale in range(4, 12):
        models.add(shelf.candidate(scale, images[:4]))
    assert models.numbers() == [1, 9, 10, 11]


def test_a_record_that_a_crash_left_behind_follows_the_link(models: ModelRegistry) -> None:
    """The link was swapped, and the record not written any more: forward, and back."""
    record = models.index()
    msgspec.structs.replace(record, trail=(1, 2)).write(models.folder / "index.json")
    assert models.index().trail == (1, 2, 3)
    (models.folder / "current").unlink()
    (models.folder / "current").symlink_to("1")
    assert models.index().trail == (1,)


def test_a_rollback_that_a_crash_cut_short_is_finished(models: ModelRegistry) -> None:
    record, weights = models.index(), models.manifest(3).weights
    msgspec.structs.replace(record, bad=(weights,)).write(models.folder / "index.json")
    models.finish_rollback()
    assert models.number() == 2
    models.finish_rollback()
    assert models.number() == 2


def test_a_damaged_model_is_skipped(models: ModelRegistry) -> None:
    (models.path(2) / "manifest.json").write_text("{")
    assert [*models.manifests()] == [1, 3]
    assert models.reported() == []
    assert models.roll_back() == 1


@pytest.mark.parametrize("spoil", [lambda p: os.truncate(p, 99), Path.unlink])
def test_a_model_whose_file_is_damaged_never_becomes_current(
    models: ModelRegistry, spoil: Callable[[Path], None]
) -> None:
    """Not by a pin, which says why, and not by a rollback, which passes it over."""
    spoil(models.path(2) / "model.onnx")
    with pytest.raises(StoreError, match=r"models/2/model\.onnx: (damaged|cannot be read)"):
        models.pin(2)
    assert (models.number(), models.index().pinned) == (3, None)
    assert models.roll_back() == 1


def test_a_damaged_record_is_one_sentence(models: ModelRegistry) -> None:
    (models.folder / "index.json").write_text("{")
    with pytest.raises(StoreError, match=r"index\.json: unreadable"):
        models.index()


@pytest.mark.parametrize(
    "report", ["", "[]", "{", '{"sha256": 5}', '{"sha256": "' + "0" * 64 + '"}', '"' * 100_000]
)
def test_a_report_about_another_file_is_ignored(models: ModelRegistry, report: str) -> None:
    (models.path(3) / "bad.json").write_text(report)
    assert models.reported() == []


def test_any_report_file_is_read_safely(models: ModelRegistry) -> None:
    """A pipe would have the agent wait for ever, and half a character cannot be written down."""
    os.mkfifo(models.path(2) / "bad.json")
    report = {"sha256": models.manifest(3).sha256, "reason": "\ud800 trucks"}
    (models.path(3) / "bad.json").write_text(json.dumps(report))
    assert models.mark_bad(*models.reported()[0]) == 2
    assert models.index().history[-2].reason == "? trucks"


def test_a_report_is_returned_only_once(models: ModelRegistry) -> None:
    report = {"sha256": models.manifest(3).sha256, "reason": "x" * 5000}
    (models.path(3) / "bad.json").write_text(json.dumps(report))
    assert models.reported() == [(3, "x" * 1000)]
    models.mark_bad(3, "x")
    assert models.reported() == []


def test_writers_in_threads_and_processes_wait_for_each_other(models: ModelRegistry) -> None:
    """A hundred notes of two threads and another process: none is lost."""
    code = """
import sys
from pathlib import Path
from fededge.export import ModelRegistry
for _ in range(50):
    ModelRegistry(Path(sys.argv[1])).note("held", 2, "process")
"""
    before = len(models.index().history)
    other = subprocess.Popen([sys.executable, "-c", code, models.folder])

    def write() -> None:
        for _ in range(25):
            models.note("held", 1)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert other.wait() == 0
    assert len(models.index().history) == before + 100


# The command


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["export", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("place", [".", "models", "models/current"])
def test_the_list_shows_every_model_from_any_of_its_folders(
    models: ModelRegistry, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    models.mark_bad(2, "trucks")
    state = models.folder.parent / place
    text = run(capsys, state)
    assert run(capsys, state, "--list") == text
    assert [w for w in text.split() if w in ("earlier", "bad", "current")][:3] == [
        "earlier",
        "bad",
        "current",
    ]
    shown = json.loads(run(capsys, state, "--json"))
    assert (shown["current"], shown["pinned"]) == (3, None)
    assert [m["state"] for m in shown["models"]] == ["earlier", "bad", "current"]
    assert shown["models"][0]["sha256"] == models.manifest(1).sha256
    assert shown["history"][-1] == {**shown["history"][-1], "event": "bad", "reason": "trucks"}


def test_the_command_changes_what_is_current(
    models: ModelRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    state = models.folder.parent
    assert run(capsys, state, "--rollback") == "current is model 2, of round 3\n"
    assert "until --unpin" in run(capsys, state, "--pin", 3)
    assert models.index().pinned == 3
    assert "until there is one that is not worse" in run(capsys, state, "--unpin")
    assert models.index().pinned is None
    assert "model 3 is bad and not used again; current is model 2" in run(
        capsys, state, "--bad", "trucks"
    )
    assert json.loads(run(capsys, state, "--rollback", "--json"))["current"] == 1
    config = state / "agent.toml"
    config.write_text('federation = "f"\ndevice = "d"\nstate = "."\n')
    assert json.loads(run(capsys, "--list", "--config", config, "--json"))["current"] == 1


def test_a_damaged_model_is_listed_as_such_beside_the_others(
    models: ModelRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    (models.path(1) / "manifest.json").write_text("{")
    (models.folder / "٣").mkdir()  # a number too, and none that we write
    state = models.folder.parent
    text = run(capsys, state)
    assert [w for w in text.split() if w in ("damaged", "earlier", "current")][:3] == [
        "damaged",
        "earlier",
        "current",
    ]
    shown = json.loads(run(capsys, state, "--json"))["models"]
    assert [(m["number"], m["state"]) for m in shown] == [
        (1, "damaged"),
        (2, "earlier"),
        (3, "current"),
    ]
    assert "manifest.json: not a manifest" in shown[0]["error"]


def test_the_device_is_that_of_the_folder_where_the_command_is_run(
    models: ModelRegistry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside agent.toml, in the state folder, or in that of the models."""
    state = models.folder.parent.rename(models.folder.parent.with_name("state"))
    (state.parent / "2024").mkdir()  # a number too, and no model
    for number, place in ((2, state.parent), (1, state), (3, state / "models")):
        monkeypatch.chdir(place)
        assert main(["export", "--pin", str(number)]) == 0
        assert f"current is model {number}" in capsys.readouterr().out
    monkeypatch.chdir(models.folder.anchor)
    assert main(["export", "--list"]) == 2
    assert "there are no exported models here" in capsys.readouterr().err


def test_mistakes_are_one_sentence(
    models: ModelRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(models.folder.parent)
    models.mark_bad(3, "bad")
    wrong = {
        ("export", "/nowhere"): "there are no exported models here",
        ("export", state, "--config", "x"): "give either the device's state folder or --config",
        ("export", state, "--pin", "77"): "has no model 77; it has: 1, 2, 3",
        ("export", state, "--pin", "3"): "model 3 was reported bad",
        ("export", state, "--bad", " "): "--bad needs a reason",
    }
    for arguments, sentence in wrong.items():
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
    models.roll_back()
    assert main(["export", state, "--rollback"]) == 2
    assert "no earlier model to go back to" in capsys.readouterr().err
    (models.folder / "current").unlink()
    assert main(["export", state, "--unpin"]) == 2
    assert capsys.readouterr().err.endswith("models: no model is current\n")


def test_a_reason_of_any_bytes_is_kept(
    models: ModelRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, models.folder.parent, "--bad", "\udcff trucks")
    assert "? trucks" in {entry.reason for entry in models.index().history}
