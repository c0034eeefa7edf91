"""Foreign files in the folder of models do not keep new models from apps."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fededge.errors import StoreError
from fededge.export import folders

FILES = {"model.onnx": b"model", "manifest.json": b"{}"}


def link_elsewhere(folder: Path, name: str) -> None:
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "mine.txt").write_text("mine")
    (folder / name).symlink_to("../elsewhere")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a file with the next number": lambda f: (f / "3").write_text("x"),
    "a file with an old number": lambda f: (f / "0").write_text("x"),
    "a folder of such a name": lambda f: (f / "007").mkdir(),
    "a link with an old number": lambda f: link_elsewhere(f, "0"),
    "a link with the next number": lambda f: (f / "3").symlink_to("2"),
    "a file where new models are written": lambda f: (f / ".new").write_text("x"),
    "a link where new models are written": lambda f: link_elsewhere(f, ".new"),
    "a folder where the new link is made": lambda f: (f / ".current.new").mkdir(),
    "a file for the link": lambda f: (f / "current").write_text("x"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_file_is_no_model_and_blocks_no_new_one(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    for number in (1, 2):
        folders.write_folder(folder, number, FILES)
    FOREIGN[what](folder)
    for _ in range(4):
        number = max(folders.used_numbers(folder)) + 1
        folders.write_folder(folder, number, FILES)
        folders.set_current(folder, number)
        folders.remove(folder, folders.model_numbers(folder)[:-2])
        assert (folder / "current" / "model.onnx").read_bytes() == b"model"
        assert (folder / "current").readlink() == Path(str(number))
        assert folders.model_numbers(folder)[-1] == number
        assert len(folders.model_numbers(folder)) == 2
    elsewhere = tmp_path / "elsewhere"
    assert not elsewhere.exists() or os.listdir(elsewhere) == ["mine.txt"]


def test_a_folder_in_place_of_the_link_is_reported_and_kept(tmp_path: Path) -> None:
    """As a copy leaves it that followed the link: nobody knows whether it is the only one."""
    folders.write_folder(tmp_path, 1, FILES)
    shutil.copytree(tmp_path / "1", tmp_path / "current")
    with pytest.raises(StoreError, match=r"current must be a link .* it is a folder .*; remove it"):
        folders.set_current(tmp_path, 1)
    assert (tmp_path / "current" / "model.onnx").exists()


def test_an_old_model_that_cannot_be_removed_is_reported_and_the_others_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An app of another user has made a folder in it."""
    for number in (1, 2, 3):
        folders.write_folder(tmp_path, number, FILES)
    remove = shutil.rmtree

    def rmtree(path: Path, ignore_errors: bool = False) -> None:
        if path.name == ".old-1":
            raise PermissionError(13, "Permission denied")
        remove(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with caplog.at_level(logging.WARNING):
        folders.remove(tmp_path, [1, 2])
    assert folders.model_numbers(tmp_path) == [3]
    (record,) = caplog.records
    assert ".old-1: an old model cannot be removed (Permission denied)" in record.getMessage()
    monkeypatch.undo()
    folders.remove(tmp_path, [])
    assert os.listdir(tmp_path) == ["3"]
