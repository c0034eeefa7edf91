"""Weights as a file: written by one run, read by the next, and refused in one sentence."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from fededge.errors import ConfigError
from fededge.federated.warm_start import WeightsOrigin, read_weights, write_weights
from fededge.flat import Layout, Vector, as_numpy
from fededge.model_spec import ModelSpec

NET = nn.Sequential(nn.Linear(31, 40), nn.BatchNorm1d(40), nn.Linear(40, 3))
LAYOUT = Layout.of(NET)
SPEC = ModelSpec("mine", ("cat", "dog", "hen"), (1, 8, 8), (0.5,), (0.25,))
MODEL: Vector = as_numpy(torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(5)))
ORIGIN = WeightsOrigin(
    federation="farm",
    version="000041-0123456789abcdef",
    sha256=LAYOUT.sha256(MODEL),
    labels=SPEC.labels,
    mean=SPEC.mean,
    std=SPEC.std,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "start.safetensors"
    write_weights(made, LAYOUT, MODEL, ORIGIN)
    return made


def refusal(path: Path, layout: Layout = LAYOUT, spec: ModelSpec = SPEC) -> str:
    with pytest.raises(ConfigError) as caught:
        read_weights(path, layout, spec)
    said = str(caught.value)
    assert said.startswith(f"weights {path}: ")
    assert "\n" not in said
    return said


def test_what_is_written_is_read_again_with_its_origin(path: Path) -> None:
    start = read_weights(path, LAYOUT, SPEC)
    assert start.model.tobytes() == MODEL.tobytes()
    assert start.said == "version 000041-0123456789abcdef of federation farm, by start.safetensors"
    assert start.doubt == ""


def test_other_programs_read_and_write_the_same_format(path: Path) -> None:
    """The names are the network's own; a file without our texts is taken by its tensors."""
    tensors = load_file(path)
    assert {name: torch.Size(t.shape) for name, t in tensors.items()} == {
        name: t.shape for name, t in NET.state_dict().items() if t.is_floating_point()
    }
    save_file(tensors, path, {"format": "pt"})
    start = read_weights(path, LAYOUT, SPEC)
    assert start.model.tobytes() == MODEL.tobytes()
    assert start.said == "the weights in start.safetensors"


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    tensors = dict(load_file(path))
    change(tensors)
    save_file(tensors, path)
    return path


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda t: t.pop("2.bias"), "2.bias is missing"),
        (lambda t: t.update(extra=t["2.bias"].copy()), "the network has no extra"),
        (lambda t: t.update({"2.bias": np.zeros(4, np.float32)}), "2.bias is 4, not 3"),
        (lambda t: t.update({"0.bias": np.zeros(40, np.float16)}), "0.bias is F16, not F32"),
        (
            lambda t: t.update({"2.weight": np.zeros((40, 3), np.float32)}),
            "2.weight is 40×3, not 3×40",
        ),
    ],
)
def test_each_difference_is_named(
    path: Path, change: Callable[[dict[str, Any]], object], difference: str
) -> None:
    assert refusal(changed(path, change)).endswith(f"the network of [model]: {difference}")


def test_all_differences_are_in_one_sentence_and_many_are_counted(path: Path) -> None:
    said = refusal(path, Layout.of(nn.Sequential(nn.Linear(31, 41), nn.Linear(41, 3))))
    assert "0.weight is 40×31, not 41×31; 0.bias is 40, not 41; 1.weight is 40, not 3×41" in said
    wide = Layout.of(nn.Sequential(*(nn.Linear(2, 2) for _ in range(9))))
    said = refusal(path, wide)  # 6 have other shapes, 12 are missing, 2 are unknown
    assert said.endswith("4.bias is missing; and 10 more")


def test_other_labels_are_a_difference_too(path: Path) -> None:
    """In another order the tensors would fit, and every answer would be wrong."""
    other = msgspec.structs.replace(SPEC, labels=("dog", "cat", "hen"))
    assert refusal(path, spec=other).endswith(
        "its labels are cat, dog, hen, the federation's are dog, cat, hen"
    )


def test_another_normalisation_is_doubted_not_refused(path: Path) -> None:
    other = msgspec.structs.replace(SPEC, mean=(0.4,))
    doubt = read_weights(path, LAYOUT, other).doubt
    assert "trained with mean [0.5] and std [0.25], this federation has [0.4] and [0.25]" in doubt


def test_numbers_that_were_changed_afterwards_are_noticed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "not those of version 000041-0123456789abcdef, which it names" in refusal(path)


class Attack:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_file_runs(tmp_path: Path) -> None:
    path, trace = tmp_path / "start.pt", tmp_path / "trace"
    path.write_bytes(pickle.dumps(Attack(trace)))
    assert "not safetensors bytes" in refusal(path)
    torch.save(NET.state_dict(), path)
    assert "not safetensors bytes" in refusal(path)
    assert not trace.exists()


HEADER = b'{"__metadata__":{"fededge":"%s"}}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (1 << 40).to_bytes(8, "little") + b"{}",
        (4).to_bytes(8, "little") + b"[1]]",
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        len(HEADER % b"[").to_bytes(8, "little") + HEADER % b"[",
        len(HEADER % b"{}").to_bytes(8, "little") + HEADER % b"{}",
    ],
)
def test_hostile_bytes_are_one_short_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "start.safetensors"
    path.write_bytes(data)
    assert len(refusal(path)) < 600


def test_a_file_that_ends_early_or_is_not_finite_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    assert "gap" in refusal(path)
    path.write_bytes(whole)
    changed(path, lambda t: t["2.bias"].fill(np.nan))
    assert "numbers that are not finite" in refusal(path)


def test_what_is_not_a_file_does_not_hang(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "nothing")
    assert "Is a directory" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "(not a file)" in refusal(tmp_path / "pipe")
