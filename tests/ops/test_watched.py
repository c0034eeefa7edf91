"""The C++ that faces torch or numpy, with every access watched: under `make sanitize` alone.

It is compiled once more, and the tests of the ops run with it. The row loops behind it are compiled
as they are shipped: `test_loops.py` watches those, without torch.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from tests.ops.playing import ROOT

pytestmark = pytest.mark.timeout(2400)

SANITIZERS = shlex.split(os.environ.get("CXXFLAGS", ""))
CXX = shlex.split(os.environ.get("CXX", "c++"))
FLAGS = ("-std=c++20", "-O1", "-g1", "-fPIC", "-fopenmp", "-ffp-contract=off", "-Wno-psabi")
TESTS = (
    *("buffers", "backward", "losses", "compiled_losses", "vectors"),
    *("layers", "layer_gradients"),
)
# Plain torch has no C++ of ours in it; to trace and compile takes long and checks other things.
LEFT_OUT = "not reference and not understands and not compiled_step and not compiled_function"


def environment(**more: str) -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}, **more}


def compile_watched(folder: Path) -> None:
    """Both compiled modules, each from the sources that `setup.py` names for it."""
    pybind11 = pytest.importorskip("pybind11")
    found = [*cpp_extension.include_paths(), pybind11.get_include()]
    found += [str(ROOT / "csrc"), sysconfig.get_path("include")]
    includes = [f"-I{path}" for path in found]
    names = ('-DFEDEDGE_CXX_FLAGS="watched"', "-DTORCH_EXTENSION_NAME=_C")

    def compiled(source: Path) -> str:
        out = folder / f"{source.parent.name}_{source.stem}.o"
        watched = [] if source.stem.startswith("rows_") else SANITIZERS
        command = [*CXX, *watched, *FLAGS, *names, *includes, "-c", str(source), "-o", str(out)]
        subprocess.run(command, env=environment(), check=True)
        return str(out)

    torchs = [*(ROOT / "csrc" / "torch").glob("*.cpp"), *(ROOT / "csrc" / "cpu").rglob("*.cpp")]
    numpys = [*(ROOT / "csrc" / "sums").glob("*.cpp"), ROOT / "csrc" / "cpu" / "simd.cpp"]
    sources = sorted({*torchs, *numpys})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = dict(zip(sources, pool.map(compiled, sources), strict=True))
    libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu"]
    link = [*CXX, *SANITIZERS, "-shared", "-fopenmp"]
    for name, parts, needs in (
        ("_C", torchs, [*libraries, "-ltorch_python"]),
        ("_sums", numpys, []),
    ):
        command = [*link, *(objects[part] for part in parts), *needs]
        subprocess.run([*command, "-o", str(folder / f"{name}.so")], env=environment(), check=True)


@pytest.mark.skipif("-fsanitize" not in " ".join(SANITIZERS), reason="only under make sanitize")
def test_the_ops_tests_run_watched(tmp_path: Path) -> None:
    compile_watched(tmp_path)
    files = [f"tests/ops/test_{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-p", "tests.ops.watched", "-p", "no:cacheprovider"]
    command += ["--capture=sys", "-q", "-k", LEFT_OUT, *files]
    # A report of what was found goes to the terminal, and ends the process.
    watched = {**os.environ, "FEDEDGE_WATCHED": str(tmp_path)}
    subprocess.run(command, cwd=ROOT, env=watched, check=True)
