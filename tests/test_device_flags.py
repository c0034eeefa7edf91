"""The benchmarks' clock: it waits for an accelerator, also with a torch before 2.6."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "device_flags.py"


@pytest.fixture(scope="module")
def flags() -> ModuleType:
    spec = importlib.util.spec_from_file_location("device_flags", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["agent", "ops", "round", "step", "variants"])
def test_benchmarks_of_training_take_the_flags_of_the_commands(name: str) -> None:
    """Others do not train on a chosen device: fleet, inference, joins and threads."""
    text = (SCRIPT.parent / f"{name}.py").read_text("utf-8")
    (added,) = re.findall(r"add_device_flags\(parser, (.*)\)", text)
    given = {*re.findall(r'"(\w+)"', added), *re.findall(r'add_argument\("--(threads)"', text)}
    assert given == {"device", "threads", "precision"}


@pytest.mark.parametrize("has_accelerator", [True, False])
def test_the_clock_waits_for_the_device_before_and_after(
    flags: ModuleType, monkeypatch: pytest.MonkeyPatch, has_accelerator: bool
) -> None:
    done = list[str]()
    module = SimpleNamespace(synchronize=done.append)
    monkeypatch.delattr(torch, "accelerator", raising=False)
    if has_accelerator:
        monkeypatch.setattr(torch, "accelerator", module, raising=False)
    else:
        monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    assert flags.elapsed(lambda: done.append("work"), "cuda:1") > 0
    assert done == ["cuda:1", "work", "cuda:1"]


def test_the_cpu_is_not_waited_for(flags: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "accelerator", raising=False)
    assert flags.elapsed(lambda: sum(range(10_000)), "cpu") > 0
