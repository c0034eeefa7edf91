"""The choice of the implementation, its report, and the promises of the compiled module."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.library import opcheck

from fededge import ops
from fededge._internal.compiled import NAMES
from fededge.errors import ConfigError
from fededge.ops import _backend, reference
from fededge.ops._backend import Choice, choose, choose_cuda
from tests.ops.levels import each_level

compiled = pytest.mark.skipif(_backend.CHOICE.build is None, reason=_backend.CHOICE.reason)
BUILD = {"compiler": "some"}


def loads() -> Mapping[str, Any]:
    return BUILD


def fails() -> Mapping[str, Any]:
    raise ImportError("no such file")


def test_the_compiled_module_is_taken_when_it_loads() -> None:
    assert choose({}, loads) == Choice("cpu", "the compiled module loaded", BUILD)


@pytest.mark.parametrize(
    ("wish", "name"), [("reference", "reference"), ("cpu", "cpu"), ("cuda", "cpu")]
)
def test_the_environment_forces_one(wish: str, name: str) -> None:
    assert choose({"FEDEDGE_OPS": wish}, loads) == Choice(name, f"FEDEDGE_OPS={wish}", BUILD)


def test_reference_by_wish_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose({"FEDEDGE_OPS": "reference"}, fails).name == "reference"


def test_a_missing_module_is_one_warning_that_names_the_error() -> None:
    with pytest.warns(RuntimeWarning, match="do not load .ImportError: no such file.") as seen:
        choice = choose({}, fails)
    assert len(seen) == 1
    assert choice.name == "reference"
    assert "no such file" in choice.reason


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"FEDEDGE_OPS": "gpu"}, "FEDEDGE_OPS is 'gpu', it must be one of: reference, cpu, cuda"),
        ({"FEDEDGE_OPS": ""}, "FEDEDGE_OPS is ''"),
        ({"FEDEDGE_OPS": "cpu"}, "FEDEDGE_OPS=cpu, but .*no such file"),
        ({"FEDEDGE_OPS": "cuda"}, "FEDEDGE_OPS=cuda, but .*no such file"),
        ({"FEDEDGE_REQUIRE_EXT": "1"}, "FEDEDGE_REQUIRE_EXT=1, but .*no such file"),
    ],
)
def test_an_unavailable_implementation_is_a_configuration_error(
    environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(environ, fails)


@compiled
@pytest.mark.skipif("FEDEDGE_OPS" in os.environ, reason="FEDEDGE_OPS decides")
def test_another_device_is_served_by_the_reference_until_it_has_every_kernel() -> None:
    """Meta tensors have kernels for some of the ops: that is not enough."""
    for device in ("meta", "xpu"):
        choice = _backend.other_device.__wrapped__(device)
        assert choice == Choice("reference", f"there is no ala_step_ for {device}")


@pytest.mark.parametrize("wish", NAMES)
def test_the_environment_keeps_the_kernels_off_another_device(
    monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    monkeypatch.setenv("FEDEDGE_OPS", wish)
    choice = _backend.other_device.__wrapped__("xpu")
    assert choice == Choice("reference", f"FEDEDGE_OPS={wish}")


def test_the_choice_is_made_before_the_first_op() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from fededge.ops import ema_"],
        env={**os.environ, "FEDEDGE_OPS": "nonsense"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "FEDEDGE_OPS is 'nonsense'" in result.stderr


def test_facts_say_which_one_runs_and_why() -> None:
    facts = ops.facts()
    assert facts["implementation"] in NAMES
    assert facts["reason"]
    assert facts["threads"] == torch.get_num_threads()
    assert facts["cuda"]["implementation"] in ("reference", "cuda")
    assert facts["cuda"]["reason"]


@compiled
def test_facts_of_the_build_name_compiler_torch_flags_and_instruction_set() -> None:
    build = ops.facts()["build"]
    assert build["torch"] == torch.__version__.split("+")[0]
    assert "-ffp-contract=off" in build["flags"]
    assert "native" not in build["flags"]
    assert build["simd"] == build["simd_levels"][-1]
    assert build["compiler"].split()[0] in ("gcc", "clang")


def test_a_module_built_for_another_torch_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("fededge._C")
    module.__dict__["facts"] = lambda: {"torch": "1.0.0"}
    monkeypatch.setitem(sys.modules, "fededge._C", module)
    with pytest.raises(ImportError, match=r"built for torch 1\.0\.0, but torch .* runs"):
        _backend.load_module()


CPU = Choice("cpu", "a test", BUILD)


def not_built() -> Mapping[str, Any]:
    raise ModuleNotFoundError("No module named 'fededge._cuda'")


def test_on_a_gpu_the_cuda_module_is_taken_when_it_loads() -> None:
    reason = "the CUDA module loaded and torch sees a GPU"
    assert choose_cuda({}, CPU, True, loads) == Choice("cuda", reason, BUILD)
    wished = choose_cuda({"FEDEDGE_OPS": "cuda"}, CPU, True, loads)
    assert wished == Choice("cuda", "FEDEDGE_OPS=cuda", BUILD)


@pytest.mark.parametrize("wish", ["cpu", "reference"])
def test_a_wish_for_the_cpu_leaves_a_gpu_to_pure_torch(wish: str) -> None:
    choice = choose_cuda({"FEDEDGE_OPS": wish}, CPU, True, loads)
    assert choice == Choice("reference", f"FEDEDGE_OPS={wish}")


@pytest.mark.parametrize(
    ("cpu", "gpu", "load", "reason"),
    [
        (CPU, False, loads, "torch sees no GPU"),
        (CPU, True, not_built, "no CUDA kernels were built"),
        (CPU, True, fails, r"the CUDA kernels do not load \(no such file\)"),
        (Choice("reference", "no compiler"), True, loads, "no compiler"),
    ],
)
def test_the_reason_why_the_cuda_kernels_are_not_used_is_given(
    cpu: Choice, gpu: bool, load: Any, reason: str
) -> None:
    choice = choose_cuda({}, cpu, gpu, load)
    assert choice.name == "reference"
    assert re.match(reason, choice.reason)
    with pytest.raises(ConfigError, match=f"^FEDEDGE_OPS=cuda, but {reason}.*; unset it, or set"):
        choose_cuda({"FEDEDGE_OPS": "cuda"}, cpu, gpu, load)


def test_a_device_gets_what_was_chosen_for_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backend, "CHOICE", Choice("reference", "a test"))
    monkeypatch.setattr(_backend, "CUDA", Choice("cuda", "a test", BUILD))
    monkeypatch.setattr(_backend, "direct", lambda: torch.ops.fededge)
    on_gpu = SimpleNamespace(is_cpu=False, is_cuda=True)
    assert _backend.kernels(torch.zeros(1)) is reference
    assert _backend.kernels(cast("torch.Tensor", on_gpu)) is torch.ops.fededge
    assert _backend.kernels(torch.zeros(1, device="meta")) is reference


@compiled
def test_every_instruction_set_gives_the_same_bits_of_flat_vectors() -> None:
    """Nothing is fused, so that a Jetson and a server agree: here, all that this machine has."""
    from fededge import _C

    digests = set()
    for level in each_level():
        assert _C.facts()["simd"] == level
        digests.add(digest_of_flat_vectors())
    assert len(digests) == 1


def digest_of_flat_vectors() -> str:
    generator = torch.Generator().manual_seed(5)
    w, g, buffer, anchor, bias = (torch.randn(10_007, generator=generator) for _ in range(5))
    torch.ops.fededge.ema_(anchor, g, 0.3)
    torch.ops.fededge.sgd_step_(w, g, buffer, 0.1, 0.9, 0.01, 0.2, anchor, bias, None)
    W, mixed = torch.rand(10_007, generator=generator), torch.empty(10_007)
    torch.ops.fededge.ala_step_(W, mixed, g, w, anchor, 0.3)
    parts = [t.numpy().tobytes() for t in (w, buffer, anchor, W, mixed)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@compiled
def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    from fededge import _C

    with pytest.raises(ValueError, match="SIMD level 'mmx' is not one of this processor's: "):
        _C.limit_simd("mmx")


def arguments(full: bool) -> dict[str, tuple[Any, ...]]:
    v = [torch.rand(9) for _ in range(6)]
    rest = (v[2], 0.1, 0.9, 0.01, 0.2, v[3], v[4], v[5]) if full else (None, 0.1, 0.0, 0.0, 0.0)
    return {
        "ala_step_": (v[0], v[1], v[2], v[3], v[4], 0.5),
        "ema_": (v[0], v[1], 0.5),
        "sgd_step_": (v[0], v[1], *rest) if full else (v[0], v[1], *rest, None, None, None),
    }


@compiled
@pytest.mark.parametrize("full", [True, False], ids=["all vectors", "few vectors"])
@pytest.mark.parametrize("op", list(arguments(full=True)))
def test_torch_understands_the_op(op: str, full: bool) -> None:
    opcheck(getattr(torch.ops.fededge, op).default, arguments(full)[op])


@compiled
def test_the_step_can_be_part_of_a_compiled_function() -> None:
    def step(w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        ops.sgd_step_(w, g, lr=0.5)
        return w * 2

    w, g = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 2.0])
    result = torch.compile(step, backend="aot_eager", fullgraph=True)(w, g)
    assert w.tolist() == [0.0, 1.0]
    assert result.tolist() == [0.0, 2.0]


@compiled
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: o.ema_(torch.zeros(3), torch.zeros(4), 0.5), "source has 4 elements, expec"),
        (lambda o: o.ema_(torch.zeros(3), torch.zeros(6)[::2], 0.5), "source is not contiguous"),
        (lambda o: o.ema_(torch.zeros(3).half(), torch.zeros(3), 0.5), "target is Half"),
        (lambda o: o.ema_(torch.zeros(3), torch.zeros(3).double(), 0.5), "source is Double"),
    ],
)
def test_the_registered_op_stays_inside_its_memory_whoever_calls_it(
    call: Any, message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        call(torch.ops.fededge)


@compiled
def test_vectors_that_lie_partly_across_each_other_are_refused() -> None:
    base = torch.zeros(5)
    with pytest.raises(RuntimeError, match="single memory location"):
        ops.ema_(base[:4], base[1:], 0.5)
    with pytest.raises(RuntimeError, match="single memory location"):
        ops.sgd_step_(base, torch.zeros(5), base, lr=0.1, momentum=0.9)
    with pytest.raises(RuntimeError, match="single memory location"):
        ops.ala_step_(torch.zeros(5), base, base, base, base, eta=0.1)


@compiled
def test_a_gradient_through_the_registered_op_is_refused_at_once() -> None:
    leaf = torch.ones(3, requires_grad=True)
    for vectors in ((leaf * 1, torch.zeros(3)), (torch.zeros(3), leaf)):
        with pytest.raises(RuntimeError, match="requires a gradient, which this op cannot give"):
            torch.ops.fededge.ema_(*vectors, 0.5)
    with torch.no_grad():
        torch.ops.fededge.ema_(leaf, torch.zeros(3), 0.5)
    assert leaf.tolist() == [0.5] * 3
