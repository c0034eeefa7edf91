"""The content of an installation: versions, data and commands, with and without kernels."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import fededge

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fededge", "server", "device_agent", "csrc")
FILES = ("pyproject.toml", "setup.py", "LICENSE", "README.md")
slow = pytest.mark.slow


def run(*command: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FEDEDGE_")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**inherited, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the sources, so that nothing is built next to those that are being worked on."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture
def broken(checkout: Path) -> Path:
    """A checkout whose C++ does not compile."""
    shutil.rmtree(checkout / "csrc")
    (checkout / "csrc" / "torch").mkdir(parents=True)
    (checkout / "csrc" / "torch" / "broken.cpp").write_text("#error this cannot be compiled\n")
    return checkout


def build_wheel(checkout: Path, **environ: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = checkout.parent / "wheels"
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-v", "-w", str(out))
    return run("-m", "pip", "wheel", *options, ".", cwd=checkout, **environ), out


def names_in(folder: Path) -> list[str]:
    (wheel,) = folder.glob("fededge-*.whl")
    with zipfile.ZipFile(wheel) as file:
        return file.namelist()


def test_versions_agree() -> None:
    assert importlib.metadata.version("fededge") == fededge.__version__


def test_importing_the_package_does_not_load_torch(tmp_path: Path) -> None:
    """A command that only prints its help must not wait for torch."""
    code = "import sys, fededge; sys.exit('torch' in sys.modules)"
    assert run("-c", code, cwd=tmp_path).returncode == 0


def test_data_files_are_found() -> None:
    package = importlib.resources.files("fededge")
    assert package.joinpath("py.typed").is_file()
    embedded = package.joinpath("data").joinpath("embedded")
    assert [file.name for file in embedded.iterdir() if file.is_file()]


def test_the_command_exists_and_is_the_module(tmp_path: Path) -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="fededge")
    assert script.value == "fededge.__main__:start"
    assert callable(script.load())
    assert run("-m", "fededge", "--help", cwd=tmp_path).returncode == 0


@slow
def test_a_wheel_without_kernels_has_everything_else(checkout: Path) -> None:
    """An extension module left in the checkout by an editable install must not slip in."""
    (checkout / "fededge" / "_C.cpython-xyz.so").write_bytes(b"stale")
    result, out = build_wheel(checkout, FEDEDGE_NO_EXT="1")
    assert result.returncode == 0, result.stdout
    assert "kernels are left out, pure torch serves instead: FEDEDGE_NO_EXT=1" in result.stdout
    names = names_in(out)
    assert [name for name in names if name.endswith(".so")] == []
    for name in (
        "fededge/__init__.py",
        "fededge/py.typed",
        "fededge/ops/reference.py",
        "fededge_agent/__init__.py",
        "fededge_agent/units/fededge-agent.service",
        "fededge_server/__init__.py",
        "fededge_server/units/fededge-coordinator.service",
    ):
        assert name in names
    assert [name for name in names if name.startswith("fededge/data/embedded/")]


@slow
def test_modules_deleted_since_the_last_build_do_not_come_back(checkout: Path) -> None:
    passing = checkout / "fededge" / "passing.py"
    passing.write_text("")
    build_wheel(checkout, FEDEDGE_NO_EXT="1")
    passing.unlink()
    _, out = build_wheel(checkout, FEDEDGE_NO_EXT="1")
    assert "fededge/passing.py" not in names_in(out)


@slow
def test_a_failing_compile_leaves_the_kernels_out_and_says_so(broken: Path) -> None:
    result, out = build_wheel(broken)
    assert result.returncode == 0, result.stdout
    assert "pure torch serves instead: compiling them failed" in result.stdout
    assert [name for name in names_in(out) if name.endswith(".so")] == []


@slow
def test_a_failing_compile_is_an_error_where_kernels_are_required(broken: Path) -> None:
    result, out = build_wheel(broken, FEDEDGE_REQUIRE_EXT="1")
    assert result.returncode != 0
    assert "FEDEDGE_REQUIRE_EXT=1 asks for them" in result.stdout
    assert not list(out.glob("*.whl"))


@slow
def test_without_a_compiler_the_package_still_installs(checkout: Path) -> None:
    result, out = build_wheel(checkout, CXX="no-such-compiler")
    assert result.returncode == 0, result.stdout
    assert "there is no C++ compiler 'no-such-compiler'" in result.stdout
    assert "fededge/__init__.py" in names_in(out)


@slow
def test_the_source_archive_holds_all_that_the_kernels_need(checkout: Path) -> None:
    code = "from setuptools import build_meta; build_meta.build_sdist('.')"
    result = run("-c", code, cwd=checkout)
    assert result.returncode == 0, result.stdout
    (archive,) = checkout.glob("fededge-*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    wanted = {str(p.relative_to(checkout)) for p in (checkout / "csrc").rglob("*") if p.is_file()}
    assert wanted <= names
