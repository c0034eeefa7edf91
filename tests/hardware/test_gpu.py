"""The GPUs that a build has code for, and the code that the compiled kernels lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from fededge.hardware import kernels_finding
from fededge.hardware.gpu import covers
from tests.hardware.fakes import ORIN, FakeTorch, jetson

NOT_BUILT = (
    "no CUDA kernels were built (FEDEDGE_CUDA=1 pip install --no-build-isolation --no-deps .)"
)


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        ("sm_87", (8, 7), True),
        ("sm_80", (8, 7), True),
        ("sm_89", (8, 7), False),
        ("sm_75", (8, 7), False),
        ("sm_100", (10, 0), True),
        ("sm_120", (12, 1), True),
        ("compute_80", (8, 7), True),
        ("compute_80", (12, 0), True),
        ("compute_90", (8, 7), False),
        ("sm_90a", (9, 0), True),
        ("compute_90a", (10, 0), False),
        ("sm_100f", (10, 3), True),
        ("compute_100f", (12, 0), False),
        ("8.7", (8, 7), True),
        ("8.0+PTX", (9, 0), True),
        ("gfx90a", (9, 0), False),
    ],
)
def test_code_runs_on_a_gpu(built: str, capability: tuple[int, int], runs: bool) -> None:
    assert covers(["sm_50", built], capability) is runs


def found(root: Path, architectures: str | None, reason: str = "") -> str:
    build = None if architectures is None else {"architectures": architectures}
    probe = jetson(root, FakeTorch(["sm_87"], "12.6", [ORIN]))
    return str(kernels_finding(probe, build, reason) or "")


def test_kernels_that_were_not_built_are_a_finding(tmp_path: Path) -> None:
    assert found(tmp_path, None, NOT_BUILT) == (
        "the GPU runs plain torch: no CUDA kernels were built; fix: "
        "FEDEDGE_CUDA=1 pip install --no-build-isolation --no-deps ."
    )
    assert "(libcudart.so.12: no such file)" in found(
        tmp_path, None, "the CUDA kernels do not load (libcudart.so.12: no such file)"
    )


def test_kernels_for_another_architecture_are_a_finding(tmp_path: Path) -> None:
    assert found(tmp_path, "sm_75 sm_90 compute_90") == (
        "the CUDA kernels are built for sm_75, sm_90, compute_90, not for Orin of compute "
        'capability 8.7; fix: TORCH_CUDA_ARCH_LIST="8.7" FEDEDGE_CUDA=1 pip install '
        "--no-build-isolation --no-deps ."
    )


@pytest.mark.parametrize("built", ["sm_75 sm_87", "8.7", "7.5;8.7", "8.0+PTX", "Ampere"])
def test_kernels_for_this_gpu_are_no_finding(tmp_path: Path, built: str) -> None:
    """A name that is not a number may be this GPU's: no finding."""
    assert found(tmp_path, built) == ""
