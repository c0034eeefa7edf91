"""Memory limits for announced jobs, checked without allocating it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from fededge.config import AgentConfig
from fededge.errors import ConfigError, LayoutError
from fededge.flat import FlatModel, Layout
from fededge.model_spec import ModelSpec
from fededge.models import activation_counts, build_for, meta_network, names
from fededge.models.activations import ActivationCounts
from fededge_agent.trainer.limits import Limits

LENET = ModelSpec("lenet", ("a", "b"), (1, 28, 28), (0.5,), (0.5,))
TEXTS = ModelSpec("fasttext", ("a", "b"), (8,), (), (), vocabulary=10_000_000)
PHOTOGRAPHS = ModelSpec("resnet18", ("a", "b"), (3, 8192, 8192), (0.5,) * 3, (0.5,) * 3)


def limits(model: int = 2**31, memory: int = 2**40) -> Limits:
    return Limits(
        AgentConfig(
            federation="f",
            device="box",
            state="s",
            max_model_bytes=model,
            max_memory_bytes=memory,
        )
    )


def layout(spec: ModelSpec) -> str:
    return Layout.of(meta_network(spec)).hash


@pytest.mark.parametrize("name", ["lenet", "resnet8", "vgg8-bn", "mlpnet"])
def test_an_outline_has_the_layout_of_the_network(name: str) -> None:
    spec = msgspec.structs.replace(LENET, name=name)
    assert Layout.of(meta_network(spec)) == FlatModel(build_for(spec, 0)).layout


def test_a_network_may_be_as_large_as_allowed_and_no_larger() -> None:
    size = 4 * Layout.of(meta_network(LENET)).size
    limits(model=size).check_network(LENET, layout(LENET))
    with pytest.raises(ConfigError, match=f"lenet would take {size:,} bytes.*max_model_bytes"):
        limits(model=size - 1).check_network(LENET, layout(LENET))


def test_a_training_holds_five_models() -> None:
    size = 4 * Layout.of(meta_network(LENET)).size
    fixed = 5 * size + 8 * 2**2
    limits(memory=fixed).check_network(LENET, layout(LENET))
    with pytest.raises(ConfigError, match=f"some {fixed:,} bytes of memory.*max_memory_bytes"):
        limits(memory=fixed - 1).check_network(LENET, layout(LENET))


def test_many_labels_take_a_matrix() -> None:
    """FedACD's has a number for each pair of labels."""
    many = msgspec.structs.replace(LENET, labels=tuple(map(str, range(100_000))))
    with pytest.raises(ConfigError, match="max_memory_bytes"):
        limits(memory=10 * 2**30).check_network(many, layout(many))


def test_another_layout_is_told_with_both_hashes() -> None:
    with pytest.raises(LayoutError, match=f"has layout {layout(LENET)} here.*{'cd' * 32}"):
        limits().check_network(LENET, "cd" * 32)


def resident() -> int:
    """Bytes that this process has in memory."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def test_a_network_that_is_too_large_is_refused_before_its_memory_is_allocated() -> None:
    """1.3 GB of words, five times; and pictures that the first layer makes 4 GB of, each."""
    before = resident()
    with pytest.raises(ConfigError, match="max_memory_bytes"):
        limits(memory=2**30).check_network(TEXTS, layout(TEXTS))
    photographs = limits(memory=8 * 2**30)
    photographs.check_network(PHOTOGRAPHS, layout(PHOTOGRAPHS))
    with pytest.raises(ConfigError, match="max_memory_bytes"):
        photographs.check_training(PHOTOGRAPHS, batch=1, examples=10)
    assert resident() - before < 200 * 2**20


def test_looking_does_not_load_torchs_compiler() -> None:
    code = (
        "import sys; from tests.device_agent.trainer.test_limits import *\n"
        "limits().check_network(LENET, layout(LENET)); limits().check_training(LENET, 32, 100)\n"
        "assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_the_layers_of_lenet_counted_by_hand() -> None:
    """24x24 twice, pooled to 12x12, 8x8 twice, pooled to 4x4, each 16 times; then 120, 84, 2."""
    sizes = [16 * 24 * 24, 16 * 24 * 24, 16 * 12 * 12, 16 * 8 * 8, 16 * 8 * 8, 256, 256]
    sizes += [120, 120, 84, 84, 2]
    macs = 16 * 24 * 24 * 25 + 16 * 8 * 8 * 25 * 16 + 256 * 120 + 120 * 84 + 84 * 2
    assert activation_counts(LENET) == ActivationCounts(sum(sizes), max(sizes), macs)


@pytest.mark.parametrize("name", names())
def test_the_layers_of_larger_inputs_are_near_enough(name: str) -> None:
    large = msgspec.structs.replace(LENET, name=name, shape=(1, 160, 160))
    found: list[int] = []
    network = build_for(large, 0).eval()
    for part in network.modules():
        if not [*part.children()]:
            part.register_forward_hook(lambda _, __, output: found.append(output.numel()))
    with torch.no_grad():
        network(torch.zeros(1, *large.shape))
    assert 0.6 < activation_counts(large).all / sum(found) < 2


def test_the_length_of_a_text_counts_its_vocabulary_does_not() -> None:
    assert activation_counts(TEXTS).largest == 8 * 32


@pytest.mark.parametrize(
    ("batch", "examples", "at_once"),
    [(10, 1000, 11), (10, 5, 5), (1_000_000, 500, 500)],
    ids=["a batch, and one that joins it", "fewer examples", "all of them"],
)
def test_a_batch_takes_what_its_layers_take(batch: int, examples: int, at_once: int) -> None:
    layers = activation_counts(LENET)
    trained, evaluated = layers.all * at_once, 2 * layers.largest * min(256, examples)
    fixed = 5 * 4 * Layout.of(meta_network(LENET)).size + 8 * 2**2
    most = fixed + 4 * max(trained, evaluated)
    limits(memory=most).check_training(LENET, batch, examples)
    with pytest.raises(ConfigError, match="max_memory_bytes"):
        limits(memory=most - 1).check_training(LENET, batch, examples)


def test_half_of_the_memory_unless_configured() -> None:
    assert 2**28 < limits(memory=0).memory < 2**45
