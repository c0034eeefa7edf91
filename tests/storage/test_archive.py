"""A backup is whole or refused: cut, changed, forged, or aimed at files outside of its folder."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fededge.errors import StoreError
from fededge.storage import archive
from fededge.storage.archive import ArchivedFile, Contents, VanishedError
from fededge.storage.sealed import sealed

ABOUT = Contents("coordinator", "gates", "", "0.1.0", "2026-01-01T00:00:00+00:00", "round 3")
FILES = {"journal.sqlite": b"rows " * 100, "models/v1.safetensors": bytes(range(256)), "empty": b""}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    places = {}
    for number, (name, data) in enumerate(FILES.items()):
        place = tmp_path / f"file-{number}"
        place.write_bytes(data)
        places[name] = place, ""
    archive.write_archive(tmp_path / "backup", ABOUT, places)
    return tmp_path / "backup"


def whole(folder: Path) -> list[tuple[str, bool]]:
    return []


def restored(path: Path, folder: Path) -> dict[str, bytes]:
    archive.restore(path, folder, archive.read_contents(path), whole)
    return {
        place.relative_to(folder).as_posix(): place.read_bytes()
        for place in folder.rglob("*")
        if place.is_file()
    }


def forged(path: Path, files: tuple[ArchivedFile, ...], data: bytes) -> None:
    """Write a backup as somebody would who knows the format."""
    contents = sealed(msgspec.structs.replace(ABOUT, files=files))
    tail = archive.TAIL.pack(len(contents), archive.MAGIC)
    path.write_bytes(b"fededge backup 1\n" + data + contents + tail)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def test_what_was_written_is_restored(path: Path, tmp_path: Path) -> None:
    assert restored(path, tmp_path / "else" / "where") == FILES
    assert path.stat().st_mode & 0o777 == 0o600
    modes = {place.stat().st_mode & 0o077 for place in (tmp_path / "else" / "where").rglob("*")}
    assert modes == {0}


def test_an_empty_folder_is_filled(path: Path, tmp_path: Path) -> None:
    """systemd makes the folder before the service."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    restored(path, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "journal.sqlite").read_bytes() == FILES["journal.sqlite"]


def test_a_folder_that_holds_anything_is_not_touched(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "lock").touch()
    with pytest.raises(StoreError, match="in use or holds another state; stop the service and"):
        restored(path, folder)
    assert os.listdir(folder) == ["lock"]


def test_a_cut_backup_is_refused_at_any_length(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    for length in {*range(0, len(data), 7), *range(len(data) - 20, len(data))}:
        path.write_bytes(data[:length])
        with pytest.raises(StoreError, match=r"backup is damaged or incomplete|is no backup"):
            restored(path, tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_a_flipped_bit_is_noticed(path: Path, tmp_path: Path) -> None:
    data, rng = path.read_bytes(), random.Random(0)
    for bit in rng.sample(range(8 * len(data)), 300):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(StoreError) as caught:
            restored(path, tmp_path / "state")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "a/../../evil",
        "a//b",
        "a/./b",
        "",
        ".hidden",
        "a/b/c/d",
        "a\\b\0",
        "a\nb",
        "x" * 300,
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(path: Path, tmp_path: Path, name: str) -> None:
    forged(path, (ArchivedFile(name, 4, "0" * 64),), b"evil")
    with pytest.raises(StoreError, match="a name that is not allowed"):
        archive.read_contents(path)
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b/c", "a/b")])
def test_names_that_meet_are_refused(path: Path, names: tuple[str, str]) -> None:
    forged(path, tuple(ArchivedFile(name, 0, "0" * 64) for name in names), b"")
    with pytest.raises(StoreError, match="two files in it have the same name"):
        archive.read_contents(path)


@pytest.mark.parametrize("sizes", [(4, 2**60), (-4, 8), (4,), (2**63, -(2**63) + 4)])
def test_sizes_that_do_not_fit_the_file_are_refused(path: Path, sizes: tuple[int, ...]) -> None:
    data = b"evil" if sizes != (4,) else b"evil and more"
    forged(path, tuple(ArchivedFile(f"f{i}", size, "0" * 64) for i, size in enumerate(sizes)), data)
    with pytest.raises(StoreError, match="its size is not that of its files"):
        archive.read_contents(path)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda path: path.write_bytes(b"fededge backup 2\nanything"),
            "a newer version of FedEdge",
        ),
        (lambda path: path.write_bytes(b"SQLite format 3\0" * 10), "is no backup of FedEdge"),
        (lambda path: path.write_bytes(b""), "is no backup of FedEdge"),
        (lambda path: path.unlink(), "cannot be read .No such file or directory"),
        (pipe, "is no backup of FedEdge"),
        (folder, "is no backup of FedEdge"),
    ],
)
def test_what_is_no_backup_is_one_sentence(
    path: Path, make: Callable[[Path], object], said: str
) -> None:
    make(path)
    with pytest.raises(StoreError, match=said):
        archive.read_contents(path)


def test_a_link_in_the_way_is_not_followed(path: Path, tmp_path: Path) -> None:
    """The draft is made anew: what lay in its place goes, and not what it led to."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "kept").touch()
    (tmp_path / ".state.restoring").symlink_to(target)
    with pytest.raises(StoreError):
        restored(path, tmp_path / "state")
    assert os.listdir(target) == ["kept"]


def test_files_that_do_not_fit_together_are_refused(path: Path, tmp_path: Path) -> None:
    contents = archive.read_contents(path)
    with pytest.raises(StoreError, match="damaged or incomplete: the journal is lost; use another"):
        archive.restore(
            path,
            tmp_path / "state",
            contents,
            lambda _: [("odd", True), ("the journal is lost", False)],
        )
    assert not (tmp_path / "state").exists()
    assert not list(tmp_path.glob(".state*"))


def test_a_file_that_is_gone_leaves_no_backup(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"1")
    for files in (
        {"gone": (tmp_path / "gone", "")},
        {"there": (tmp_path / "there", "0" * 64)},
    ):
        with pytest.raises(VanishedError, match="changes too quickly for a backup; try again"):
            archive.write_archive(tmp_path / "backup", ABOUT, files)
    assert os.listdir(tmp_path) == ["there"]


@pytest.mark.parametrize(("changes", "whole"), [(0, True), (4, True), (5, False)])
def test_a_backup_is_tried_again_while_files_change(changes: int, whole: bool) -> None:
    left = iter(range(changes))

    def attempt() -> Contents:
        if next(left, None) is not None:
            raise VanishedError(Path("x"))
        return ABOUT

    with contextlib.nullcontext() if whole else pytest.raises(VanishedError):
        assert archive.retried(attempt) == ABOUT
