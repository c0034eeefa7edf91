"""The tree of csrc/: every layer in its folder, every file with a name of its own."""

from __future__ import annotations

from collections import defaultdict

from tests.ops.playing import ROOT

CSRC = ROOT / "csrc"


def test_no_two_layers_have_files_of_one_name() -> None:
    """A header and its source share a stem inside one folder, never across folders."""
    folders = defaultdict(set)
    for path in CSRC.rglob("*"):
        if path.is_file():
            folders[path.stem].add(path.parent.name)
    assert {name: found for name, found in folders.items() if len(found) > 1} == {}


def test_the_layers_are_folders() -> None:
    assert [path.name for path in CSRC.iterdir() if path.is_file()] == []
    layers = {path.name for path in CSRC.iterdir()}
    assert layers == {"kernels", "ops", "cpu", "cuda", "sums", "torch"}
