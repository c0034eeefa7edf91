"""`fededge doctor` on boxes that are not here: the choice, and each finding with its fix."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fededge.cli import main
from fededge.cli.operation import doctor
from fededge.hardware import Probe
from fededge.ops import _backend
from tests.hardware.fakes import ORIN, RTX, FakeGpu, FakeTorch, box, graphics_card, jetson

NOT_BUILT = _backend.Choice(
    "reference",
    "no CUDA kernels were built (FEDEDGE_CUDA=1 pip install --no-build-isolation --no-deps .)",
)
OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update."


def kernels(architectures: str) -> _backend.Choice:
    build = {"cuda": "12.6", "architectures": architectures}
    return _backend.Choice("cuda", "the CUDA module loaded and torch sees a GPU", build)


@pytest.fixture
def said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Doctor's lines about the hardware on a faked box."""

    def run(probe: Probe, built: _backend.Choice, *flags: str) -> list[str]:
        monkeypatch.setattr(doctor, "PROBE", probe)
        monkeypatch.setattr(_backend, "CUDA", built)
        # With a configuration, its broker is not there.
        assert main(["doctor", "--json", *flags]) == int(bool(flags))
        facts = json.loads(capsys.readouterr().out)
        return [facts[name] for name in facts if name == "training" or "finding" in name]

    return run


def test_all_is_fine(said: Callable[..., list[str]], tmp_path: Path) -> None:
    probe = jetson(tmp_path, FakeTorch(["sm_87"], "12.6", [ORIN]))
    assert said(probe, kernels("sm_87")) == [
        "cuda:0 is used: Orin works, 6.0 GB of its memory are free "
        "(float32, contiguous, CPU threads: 1)"
    ]


def test_no_gpu_is_no_finding(said: Callable[..., list[str]], tmp_path: Path) -> None:
    (line,) = said(box(tmp_path, FakeTorch()), NOT_BUILT)
    assert line.startswith("the CPU is used: torch sees no GPU (float32, ")
    assert line.endswith("CPU threads: 1 to 4, by the network)")


@pytest.mark.parametrize(
    ("make", "like", "built", "finding", "fix"),
    [
        (jetson, FakeTorch(), NOT_BUILT, "built for the CPU only, on NVIDIA Jetson", "JetPack"),
        (
            graphics_card,
            FakeTorch(),
            NOT_BUILT,
            "built for the CPU only, on a box with NVIDIA's driver",
            "a CUDA build",
        ),
        (
            jetson,
            FakeTorch(["sm_90"], "13.0", [ORIN]),
            NOT_BUILT,
            "no code for cuda:0, Orin of compute capability 8.7",
            "JetPack",
        ),
        (
            graphics_card,
            FakeTorch(["sm_86"], "13.0", error=OLD),
            NOT_BUILT,
            "driver 470.82.01 knows CUDA 11.4, too old for torch's 13.0",
            "update NVIDIA's driver",
        ),
        (
            graphics_card,
            FakeTorch(["sm_86"], "13.0", [FakeGpu("RTX", (8, 6), free=9 * 2**20)]),
            kernels("sm_86"),
            "cuda:0 has 9 MB of free memory",
            "end other programs",
        ),
        (
            graphics_card,
            FakeTorch(["sm_86"], "13.0", [RTX]),
            NOT_BUILT,
            "the GPU runs plain torch: no CUDA kernels were built",
            "FEDEDGE_CUDA=1 pip install",
        ),
        (
            graphics_card,
            FakeTorch(["sm_86"], "13.0", [RTX]),
            kernels("sm_87 sm_90"),
            "the CUDA kernels are built for sm_87, sm_90, not for RTX 3060",
            'TORCH_CUDA_ARCH_LIST="8.6" FEDEDGE_CUDA=1 pip install',
        ),
    ],
)
def test_a_finding_has_its_fix(
    said: Callable[..., list[str]],
    tmp_path: Path,
    make: Callable[[Path, FakeTorch], Probe],
    like: FakeTorch,
    built: _backend.Choice,
    finding: str,
    fix: str,
) -> None:
    _, line = said(make(tmp_path, like), built)
    problem, _, remedy = line.partition("; fix: ")
    assert finding in problem
    assert fix in remedy


def test_the_hardware_of_an_agents_configuration_is_examined(
    said: Callable[..., list[str]], tmp_path: Path
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        'federation = "f"\nstate = "s"\ndevice = "box"\n[broker]\nport = 1\n'
        '[hardware]\ndevice = "cuda"\nthreads = 3\n'
    )
    flags = ("--config", str(config))
    assert said(box(tmp_path, FakeTorch()), NOT_BUILT, *flags) == [
        "cannot start: device is 'cuda', but torch 2.9.0 sees no such device here: "
        "use 'auto' or 'cpu'"
    ]
    probe = jetson(tmp_path, FakeTorch(["sm_87"], "12.6", [ORIN]))
    (line,) = said(probe, kernels("sm_87"), *flags)
    assert line.endswith("CPU threads: 3)")


@pytest.mark.parametrize(
    ("installed", "line"),
    [
        ({}, "not installed: apps get no model (pip install onnxruntime)"),
        ({"onnxruntime": "1.20.1"}, "onnxruntime 1.20.1"),
        ({"onnxruntime-gpu": "1.23.0"}, "onnxruntime-gpu 1.23.0"),
        (
            {"onnxruntime": "1.20.1", "onnxruntime-gpu": "1.23.0"},
            "onnxruntime 1.20.1, onnxruntime-gpu 1.23.0",
        ),
    ],
)
def test_either_onnx_runtime_is_named_and_none_is_no_error(
    installed: dict[str, str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = importlib.metadata.version

    def version(name: str) -> str:
        if name not in doctor.ONNX_RUNTIMES:
            return others(name)
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["onnxruntime"] == line
