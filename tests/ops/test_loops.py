"""The CPU's loops without torch: on this processor, with wider registers, and on ARM.

Compiled here, with CXXFLAGS: under `make sanitize` every access of theirs is watched.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ops.playing import ROOT

SOURCES = {path.stem: path for path in sorted((Path(__file__).parent / "loops").glob("*.cpp"))}
LINES = {"rows": 11 * 24, "convolution": 19}
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wno-psabi", "-ffp-contract=off", f"-I{ROOT / 'csrc'}")
FUSED = ("-mavx2", "-mfma", "-DFEDEDGE_AVX2")
ARM = "aarch64-linux-gnu-g++"
QEMU = ("qemu-aarch64-static", "qemu-aarch64")

pytestmark = pytest.mark.timeout(1200)  # what is watched takes the compiler minutes


def printed(
    name: str, folder: Path, register: int, *compiler: str, under: tuple[str, ...] = ()
) -> list[str]:
    """The output of the program, compiled for registers of this many bytes."""
    program = folder / f"{name}{register}"
    sized = f"-DFEDEDGE_REGISTER={register}"
    # Python must load the sanitizers first; a compiler and a program of their own need not.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    build = [*compiler, *FLAGS, sized, str(SOURCES[name]), "-o", str(program)]
    subprocess.run(build, env=env, check=True)
    done = subprocess.run(
        [*under, str(program)], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.fixture(scope="module", params=SOURCES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["apart", "fused"])
def built(request: pytest.FixtureRequest) -> list[str]:
    """A compiler of programs that multiply and add apart, or at once."""
    return fusing() if request.param == "fused" else compiler()


@pytest.fixture(scope="module")
def here(name: str, built: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return printed(name, tmp_path_factory.mktemp("here"), 16, *built)


def fusing() -> list[str]:
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists() or not {"avx2", "fma"} <= set(cpu.read_text().split()):
        pytest.skip("this processor has no AVX2, or does not multiply and add at once")
    return [*compiler(), *FUSED]


def compiler() -> list[str]:
    words = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(words[0]) is None:
        pytest.skip(f"there is no C++ compiler '{words[0]}'")
    return [*words, *shlex.split(os.environ.get("CXXFLAGS", ""))]


def test_wider_registers_give_the_same_bits(
    name: str, built: list[str], here: list[str], tmp_path: Path
) -> None:
    """As AVX-512 has them; where it is missing the compiler splits them, and the order stays."""
    assert len(here) == LINES[name]
    assert printed(name, tmp_path, 64, *built) == here


def test_neon_gives_the_bits_of_others_that_fuse(name: str, tmp_path: Path) -> None:
    emulators = [found for found in map(shutil.which, QEMU) if found]
    if shutil.which(ARM) is None or not emulators:
        packages = "g++-aarch64-linux-gnu qemu-user-static"
        pytest.skip(f"needs {ARM} and {QEMU[0]} (apt install {packages})")
    neon = printed(name, tmp_path, 16, ARM, "-static", under=(emulators[0],))
    assert neon == printed(name, tmp_path, 32, *fusing())
