"""Atomic replacement of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fededge.errors import StoreError
from fededge.storage.files import replace_file


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="file: the disk is full; free some space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_where_a_folder_should_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(
        StoreError, match=r"a/b: cannot be written \((File exists|Not a directory)\)"
    ):
        replace_file(tmp_path / "a" / "b", b"x")
