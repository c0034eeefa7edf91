"""The CUDA build: when and for which GPUs it is made; the kernels compile, link and load."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fededge.ops import _backend

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """setup.py as a module, fresh for each test: it reads the environment when imported."""
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delenv("FEDEDGE_CUDA", raising=False)
    monkeypatch.delitem(sys.modules, "setup", raising=False)
    yield importlib.import_module("setup")
    sys.modules.pop("setup", None)


@pytest.mark.parametrize(
    ("known", "machine", "ptx"),
    [
        # CUDA 11.4, of JetPack 5: Xavier and Orin
        ([52, 60, 61, 70, 72, 75, 80, 86, 87], [72, 75, 80, 86, 87], 87),
        # CUDA 12.6, of JetPack 6
        ([70, 72, 75, 80, 86, 87, 89, 90], [72, 75, 80, 86, 87, 89, 90], 90),
        # CUDA 13.0, in the order in which its nvcc lists them
        (
            [75, 80, 86, 87, 88, 89, 90, 100, 110, 103, 120, 121],
            [75, 80, 86, 87, 89, 90, 100, 110, 120],
            120,
        ),
        ([130, 87], [87], 87),
    ],
)
def test_the_architectures_are_ours_that_nvcc_knows(
    build: ModuleType, known: list[int], machine: list[int], ptx: int
) -> None:
    flags = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in machine]
    flags += [f"-gencode=arch=compute_{ptx},code=compute_{ptx}"]
    assert build.architecture_flags(known) == flags


def nvcc_like(folder: Path, script: str) -> str:
    nvcc = folder / "nvcc"
    nvcc.write_text(f"#!/bin/sh\n{script}\n")
    nvcc.chmod(0o755)
    return str(nvcc)


def test_nvcc_is_asked_what_it_knows_and_where_it_lives(build: ModuleType, tmp_path: Path) -> None:
    """The nvcc on the path may be a script or a link: only nvcc itself knows its toolkit."""
    nvcc = nvcc_like(tmp_path, "printf 'compute_75\\ncompute_87\\n#$ TOP=/opt/cuda/bin/..\\n'")
    assert build.known_architectures(nvcc) == [75, 87]
    assert build.cuda_home(nvcc) == "/opt/cuda"


@pytest.mark.parametrize(
    ("wish", "cuda", "gpu", "release", "reason"),
    [
        ("0", "13.0", True, "13.0", "FEDEDGE_CUDA=0"),
        (None, None, False, "13.0", "is a build without CUDA"),
        (
            None,
            "13.2",
            False,
            "13.0",
            "torch sees no GPU (FEDEDGE_CUDA=1 builds them all the same)",
        ),
        ("1", "12.6", False, "13.0", "nvcc is of CUDA 13, but torch was built with CUDA 12.6"),
        ("1", "13.2", False, None, "there is no nvcc (install the CUDA toolkit"),
        ("1", "9.0", False, "9.0 compute_30", "nvcc knows none of the architectures 72, 75, 80"),
        (None, "13.2", True, "13.0 compute_87", None),
        ("1", "13.2", False, "13.0 compute_87", None),
    ],
)
def test_the_cuda_kernels_are_built_where_they_can_be_used_or_are_asked_for(
    build: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    wish: str | None,
    cuda: str | None,
    gpu: bool,
    release: str | None,
    reason: str | None,
) -> None:
    nvcc = nvcc_like(tmp_path, f"echo release {release}") if release else None
    monkeypatch.setattr(build, "CUDA", wish)
    monkeypatch.setattr(build, "find_nvcc", lambda: nvcc)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    found = build.cuda_obstacle()
    assert found == reason if reason is None else reason in found


def test_kernels_that_are_asked_for_and_cannot_be_had_end_the_build(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build.no_cuda("there is no nvcc")
    assert "the CUDA kernels are left out: there is no nvcc" in capsys.readouterr().err
    monkeypatch.setattr(build, "CUDA", "1")
    with pytest.raises(SystemExit, match="there is no nvcc; but FEDEDGE_CUDA=1 asks for them"):
        build.no_cuda("there is no nvcc")
    monkeypatch.setattr(build, "CUDA", "yes")
    with pytest.raises(SystemExit, match="FEDEDGE_CUDA is 'yes', it must be 0 or 1"):
        build.cuda_obstacle()


BUILD_CUDA_ALONE = """
import setup, sys
setup.extensions = lambda: [setup.cuda_extension()]
folder = sys.argv[1]
sys.argv = ["setup.py", "build_ext", "--build-lib", folder, "--build-temp", folder + "/tmp"]
setup.main()
"""

LOAD_IT = """
import importlib.util, sys, torch
from fededge import ops
spec = importlib.util.spec_from_file_location("fededge._cuda", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.facts()["architectures"])
names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("fededge::")]
has = torch._C._dispatch_has_kernel_for_dispatch_key
print("without CUDA:", [n for n in names if has(n, "CPU") and not has(n, "CUDA")])
acc = torch.zeros(3)
ops.ema_(acc, torch.full((3,), 4.0), 0.5)
print("sum:", acc.sum().item())
"""


def python(*arguments: str, cwd: Path) -> str:
    """The command's output; its PATH begins with this Python's tools, such as ninja."""
    environ = {k: v for k, v in os.environ.items() if k != "TORCH_CUDA_ARCH_LIST"}
    environ |= {"FEDEDGE_CUDA": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-8000:]
    return result.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_kernels_compile_for_every_architecture_link_and_load(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a machine without a GPU as well: the module must load, and the CPU's ops must run."""
    monkeypatch.setattr(build, "CUDA", "1")
    reason = build.cuda_obstacle()
    if reason:
        pytest.skip(reason)
    if _backend.CHOICE.build is None:
        pytest.skip(f"no compiled module for the CPU: {_backend.CHOICE.reason}")
    python("-c", BUILD_CUDA_ALONE, str(tmp_path), cwd=ROOT)
    (module,) = tmp_path.glob("fededge/_cuda.*.so")
    said = python("-c", LOAD_IT, str(module), cwd=tmp_path).splitlines()
    flags = build.architecture_flags(build.known_architectures(build.find_nvcc()))
    assert said == [
        " ".join(flag.rpartition("=")[2] for flag in flags),
        "without CUDA: []",
        "sum: 6.0",
    ]
