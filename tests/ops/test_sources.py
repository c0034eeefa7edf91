"""The tree of csrc/: every layer in its folder, every file with a name of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections import defaultdict

import pytest

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


LANES = """
#include "kernels/lanes.h"

struct Alone {
  int lane() const { return 0; }
  int width() const { return 1; }
  template <typename T>
  T swap(T x, int) const {
    return x;
  }
};

struct Mine : fededge::StridedLanes<float, Alone> {
  MEMBER
};

static_assert(fededge::LanesContract<Mine>::kHolds);
"""


@pytest.mark.parametrize(
    ("member", "compiles"),
    [
        ("", True),
        ("void take(float*, int, float) const = delete;", False),
        ("double max() const;", False),
        ("template <class F> double max(F) const;", False),
        ("using Real = int;", False),
    ],
    ids=["whole", "without take", "max without f", "max of another type", "Real is int"],
)
def test_the_compiler_checks_what_a_lanes_offers(member: str, compiles: bool) -> None:
    """One operation of the contract is hidden by a member that does not fit."""
    words = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(words[0]) is None:
        pytest.skip(f"there is no C++ compiler '{words[0]}'")
    command = [*words, "-std=c++17", f"-I{ROOT / 'csrc'}", "-fsyntax-only", "-x", "c++", "-"]
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    program = LANES.replace("MEMBER", member)
    done = subprocess.run(command, input=program, env=env, capture_output=True, text=True)
    assert (done.returncode == 0) == compiles, done.stderr
    assert compiles or "LanesContract" in done.stderr
