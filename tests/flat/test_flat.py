"""A flat model is the module it was made of, with all its floats in one vector."""

from __future__ import annotations

import copy
import hashlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fededge.errors import LayoutError
from fededge.flat import Entry, FlatModel, Layout
from fededge.flat.model import _device


def network(seed: int = 0) -> nn.Sequential:
    """Convolution, batch norm and a head: parameters, running statistics and a counter."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
        )


def images(count: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


def mark(module: nn.Module, name: str, tensor: Tensor | nn.Parameter) -> nn.Module:
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)
    return module


# The module behaves as before


def test_the_module_keeps_its_parameters_and_its_output() -> None:
    module = network().eval()
    parameters, expected = list(module.parameters()), module(images())
    flat = FlatModel(module)
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    assert torch.equal(flat(images()), expected)
    assert flat.bound


def test_vector_and_module_are_one_memory() -> None:
    flat = FlatModel(network())
    flat.vector.fill_(0.5)
    assert all(bool((p == 0.5).all()) for p in flat.module.parameters())
    with torch.no_grad():
        flat.module.get_parameter("4.bias").fill_(7.0)
    assert flat.layout.views(flat.vector)["4.bias"].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_torch_optim_trains_it_like_any_module(set_to_none: bool) -> None:
    plain, flat = network(), FlatModel(network())
    optimisers = [torch.optim.SGD(m.parameters(), 0.1, 0.9) for m in (plain, flat.module)]
    for seed in range(3):
        for module, optimiser in zip((plain, flat.module), optimisers, strict=True):
            optimiser.zero_grad(set_to_none=set_to_none)
            module(images(seed=seed)).square().sum().backward()
            optimiser.step()
    assert torch.equal(flat.vector, FlatModel(plain).vector)
    assert flat.bound


def test_the_gradient_is_one_vector_and_bind_grad_takes_a_foreign_one_in() -> None:
    flat = FlatModel(network())
    flat(images()).sum().backward()
    expected = flat.grad.clone()
    assert expected.abs().sum() > 0
    torch.optim.SGD(flat.module.parameters(), 0.1).zero_grad(set_to_none=True)
    flat.bind_grad()
    assert not flat.grad.any()
    flat.module.zero_grad(set_to_none=True)
    flat(images()).sum().backward()
    assert not flat.grad.any()
    flat.bind_grad()
    assert torch.allclose(flat.grad, expected)
    flat.zero_grad()
    assert not any(p.grad.any() for p in flat.module.parameters() if p.grad is not None)


def test_state_dict_goes_out_and_comes_in() -> None:
    flat, other = FlatModel(network(0)), FlatModel(network(1))
    other.module.load_state_dict(flat.module.state_dict())
    assert torch.equal(other.vector, flat.vector)
    assert other.bound
    assert flat.module.state_dict().keys() == network().state_dict().keys()


def test_it_exports_to_onnx(tmp_path: Path) -> None:
    module = FlatModel(network()).module.eval()
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter warns of its own age
        torch.onnx.export(module, (images(),), path, dynamo=False, input_names=["x"])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given_out,) = session.run(None, {"x": images().numpy()})
    np.testing.assert_allclose(given_out, module(images()).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, FlatModel.clone])
def test_a_copy_is_whole_and_independent(duplicate: Callable[[FlatModel], FlatModel]) -> None:
    flat = FlatModel(network())
    flat(images()).sum().backward()
    twin = duplicate(flat)
    assert twin.bound
    assert twin.layout == flat.layout
    assert torch.equal(twin.vector, flat.vector)
    before = flat.vector.clone()
    twin.vector.zero_()
    twin(images()).sum().backward()
    assert torch.equal(flat.vector, before)
    assert flat.bound


def test_a_deep_copy_of_the_module_is_an_ordinary_module() -> None:
    flat = FlatModel(network().eval())
    module = copy.deepcopy(flat.module)
    assert torch.equal(module(images()), flat(images()))
    flat.vector.zero_()
    assert module(images()).abs().sum() > 0


# The content of the vector


def test_the_layout_names_parameters_first_then_float_buffers() -> None:
    layout = Layout.of(network())
    assert [(e.name, e.shape, e.trainable) for e in layout.entries] == [
        ("0.weight", (3, 1, 3, 3), True),
        ("0.bias", (3,), True),
        ("1.weight", (3,), True),
        ("1.bias", (3,), True),
        ("4.weight", (2, 12), True),
        ("4.bias", (2,), True),
        ("1.running_mean", (3,), False),
        ("1.running_var", (3,), False),
    ]
    assert [e.offset for e in layout.entries] == [0, 27, 30, 33, 36, 60, 62, 65]
    assert layout.size == 68
    assert layout.trainable.sum() == 62


def test_running_statistics_are_updated_inside_the_vector() -> None:
    flat, plain = FlatModel(network()), network()
    flat(images())
    plain(images())
    views = flat.layout.views(flat.vector)
    assert torch.equal(views["1.running_mean"], plain.get_buffer("1.running_mean"))
    assert views["1.running_mean"].abs().sum() > 0
    assert flat.bound


def test_counters_and_buffers_that_do_not_persist_are_not_part_of_it() -> None:
    module = network()
    module.register_buffer("scratch", torch.ones(3), persistent=False)
    module.register_buffer("nothing", None)
    assert Layout.of(module) == Layout.of(network())


def test_tied_parameters_are_one_entry_with_two_names() -> None:
    module = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    module["b"].weight = module["a"].weight
    flat = FlatModel(module)
    assert flat.layout.entries == (Entry("a.weight", (3, 3), 0, True, ("b.weight",)),)
    flat.swap(torch.full((9,), 2.0))
    assert module["b"].weight is module["a"].weight
    (module["a"](torch.ones(1, 3)) + module["b"](torch.ones(1, 3))).sum().backward()
    assert flat.grad.tolist() == [2.0] * 9


def test_tied_buffers_stay_tied() -> None:
    module = nn.ModuleDict({"a": nn.BatchNorm1d(2), "b": nn.BatchNorm1d(2)})
    module["b"].running_mean = module["a"].running_mean
    flat = FlatModel(module)
    flat.swap(torch.full_like(flat.vector, 3.0))
    assert module["b"].running_mean is module["a"].running_mean
    assert module.get_buffer("b.running_mean").tolist() == [3.0, 3.0]


def test_frozen_parameters_travel_but_get_no_gradient() -> None:
    module = network()
    module[0].requires_grad_(False)
    flat = FlatModel(module)
    assert flat.layout == Layout.of(network())
    flat(images()).sum().backward()
    assert not flat.grad[:30].any()
    assert flat.grad[30:62].any()
    assert torch.equal(flat.trainable, torch.cat([torch.zeros(30), torch.ones(32), torch.zeros(6)]))
    module[0].requires_grad_(True)
    assert torch.equal(flat.trainable, flat.layout.trainable)


def test_trained_parameters_are_one_span_of_the_vector_or_need_a_mask() -> None:
    """Parameters come before running statistics; a frozen layer between others parts them."""
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    flat = FlatModel(module)

    def trained(*layers: int) -> slice | None:
        for index, layer in enumerate(module):
            layer.requires_grad_(index in layers)
        return flat.trained

    assert trained(0, 1, 2) == slice(0, 9 + 6 + 4)
    assert trained(0, 1) == slice(0, 9 + 6)
    assert trained(1) == slice(9, 9 + 6)
    assert trained(0, 2) is None
    assert trained() is None


def test_channels_last_weights_keep_their_values() -> None:
    plain = network().eval()
    flat = FlatModel(copy.deepcopy(plain).to(memory_format=torch.channels_last))
    assert torch.equal(flat.vector, FlatModel(copy.deepcopy(plain)).vector)
    assert torch.allclose(flat(images()), plain(images()), atol=1e-6)


def test_an_empty_module_is_an_empty_vector() -> None:
    flat = FlatModel(nn.Identity())
    assert (flat.layout.size, flat.vector.shape, flat.bound) == (0, (0,), True)
    flat.swap(torch.empty(0))
    assert flat.sha256() == FlatModel(nn.ReLU()).sha256()


def test_tensors_without_elements_take_no_room() -> None:
    module = mark(nn.Linear(2, 1), "none", nn.Parameter(torch.empty(0, 4)))
    flat = FlatModel(module)
    assert flat.layout.size == 3
    assert flat.layout.views(flat.vector)["none"].shape == (0, 4)
    flat.swap(torch.ones(3))
    assert flat.bound


def test_parametrized_modules_work() -> None:
    plain, wrapped = weight_norm(nn.Linear(3, 2)), weight_norm(nn.Linear(3, 2))
    wrapped.load_state_dict(plain.state_dict())
    flat = FlatModel(wrapped)
    x = torch.randn(4, 3)
    assert torch.equal(flat(x), plain(x))
    flat(x).sum().backward()
    plain(x).sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in plain.parameters() if p.grad is not None])
    assert torch.equal(flat.grad, expected)
    assert torch.equal(flat.clone()(x), flat(x))


# Refusals


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half, torch.float64])
def test_other_precisions_are_refused_by_name(dtype: torch.dtype) -> None:
    with pytest.raises(LayoutError, match=rf"^'0.weight' is {dtype}: .* call module.float\(\)"):
        FlatModel(network().to(dtype))


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (nn.Parameter(torch.zeros(2, dtype=torch.complex64)), "is torch.complex64"),
        (torch.zeros(2, dtype=torch.complex64), "is torch.complex64"),
        (nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False), "is torch.int64"),
        (torch.zeros(2, dtype=torch.half), "is torch.float16"),
        (nn.Parameter(torch.eye(2).to_sparse()), "is torch.sparse_coo: only dense"),
        (nn.Parameter(torch.empty(2, device="meta")), r"has no data \(meta device\)"),
        (nn.UninitializedParameter(), "has no shape yet: run one batch"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensor: Tensor, words: str) -> None:
    with pytest.raises(LayoutError, match=f"^'odd' {words}"):
        FlatModel(mark(nn.Linear(2, 2), "odd", tensor))


def test_two_devices_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"on several devices \(cpu, meta\): move it to one"):
        _device([torch.zeros(1), torch.zeros(1, device="meta")])


def test_two_tensors_of_one_memory_are_refused() -> None:
    module = nn.Linear(2, 2, bias=False)
    module.register_buffer("shadow", module.weight.detach())
    with pytest.raises(LayoutError, match="'shadow' and 'weight' share memory but are two tensors"):
        FlatModel(module)


# Other vectors


def test_swap_copies_nothing_and_gives_the_vector_back() -> None:
    flat = FlatModel(network())
    first, second = flat.vector, torch.randn(68)
    assert flat.swap(second) is first
    assert flat.vector.data_ptr() == second.data_ptr()
    assert flat.module.get_parameter("0.weight").data_ptr() == second.data_ptr()
    assert flat.module.get_buffer("1.running_var").data_ptr() == second[65:].data_ptr()
    assert flat.bound
    assert flat.swap(first).data_ptr() == second.data_ptr()


@pytest.mark.parametrize(
    "vector", [torch.randn(68, dtype=torch.float64), torch.randn(136)[::2], torch.arange(68)]
)
def test_swap_copies_what_the_module_could_not_use(vector: Tensor) -> None:
    flat = FlatModel(network())
    flat.swap(vector)
    assert torch.equal(flat.vector, vector.float())
    assert flat.vector.data_ptr() != vector.data_ptr()
    assert flat.bound


def test_gradients_flow_into_the_same_buffer_after_a_swap() -> None:
    flat = FlatModel(network())
    flat.swap(flat.vector.clone())
    flat(images()).sum().backward()
    assert flat.grad.any()


@pytest.mark.parametrize("use", [FlatModel.swap, FlatModel.load])
def test_a_vector_of_another_length_is_refused_and_nothing_changes(
    use: Callable[[FlatModel, Tensor], object],
) -> None:
    flat = FlatModel(network())
    before = flat.vector.clone()
    for wrong in (torch.ones(67), torch.ones(1), torch.ones(68, 1)):
        with pytest.raises(LayoutError, match=r"68 numbers, got shape \("):
            use(flat, wrong)
    assert torch.equal(flat.vector, before)
    assert flat.bound


def test_load_copies() -> None:
    flat = FlatModel(network())
    values = torch.randn(68)
    flat.load(values)
    values.zero_()
    assert flat.vector.all()


def _new_buffer(module: nn.Sequential) -> None:
    module[1].running_mean = torch.zeros(3)


def _another_buffer(module: nn.Sequential) -> None:
    module.register_buffer("more", torch.zeros(3))


def _assigned(module: nn.Sequential) -> None:
    module.load_state_dict(network(1).state_dict(), assign=True)


@pytest.mark.parametrize(
    "change",
    [
        nn.Module.half,
        nn.Module.double,
        lambda module: module.to("meta"),
        _new_buffer,
        _another_buffer,
        _assigned,
        lambda module: module[0].register_parameter("bias", None),
    ],
)
def test_bound_notices_tensors_that_moved(change: Callable[[nn.Sequential], object]) -> None:
    module = network()
    flat = FlatModel(module)
    change(module)
    assert not flat.bound


def test_bound_holds_through_moves_that_move_nothing() -> None:
    flat = FlatModel(network())
    flat.module.to("cpu").float().train().eval()
    assert flat.to("cpu").bound


# Names and numbers


@given(st.integers(0, 2**32))
def test_views_and_vector_are_inverse(seed: int) -> None:
    layout = Layout.of(network())
    vector = torch.randn(68, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(layout.vector(layout.views(vector)), vector)


def test_tensors_that_are_not_the_layouts_are_refused() -> None:
    layout = Layout.of(nn.Linear(2, 1))
    good = layout.views(torch.ones(3))
    with pytest.raises(LayoutError, match=r"missing \['bias'\], extra \['bios'\]"):
        layout.vector({"weight": good["weight"], "bios": good["bias"]})
    with pytest.raises(
        LayoutError, match=r"'bias' must be torch.float32 \(1,\), got torch.float32 \(2,\)"
    ):
        layout.vector({**good, "bias": torch.ones(2)})
    with pytest.raises(LayoutError, match=r"'bias' must be .*, got torch.float64 \(1,\)"):
        layout.vector({**good, "bias": torch.ones(1, dtype=torch.float64)})


def test_parts_are_found_by_submodule_and_by_tensor() -> None:
    layout = Layout.of(nn.ModuleDict({"head": nn.Linear(2, 1), "header": nn.Linear(1, 1)}))
    assert [e.name for e in layout.inside("head")] == ["head.weight", "head.bias"]
    assert [e.name for e in layout.inside("header.bias", "head.bias")] == [
        "head.bias",
        "header.bias",
    ]
    assert layout.mask(layout.inside("header")).tolist() == [0, 0, 0, 1, 1]
    with pytest.raises(LayoutError, match=r"no part 'body' \(it has head, header\)"):
        layout.inside("head", "body")


def base() -> dict[str, nn.Module]:
    return {"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)}


def test_the_hash_knows_names_shapes_order_and_roles_but_no_values() -> None:
    tied, buffered = base(), base()
    tied["b"].weight = tied["a"].weight
    weight = buffered["b"]._parameters.pop("weight")
    assert weight is not None
    buffered["b"].register_buffer("weight", weight.detach())
    flat_shape = {**base(), "b": nn.Linear(4, 1, bias=False)}
    renamed: dict[str, nn.Module] = {
        "a": nn.Linear(2, 2, bias=False),
        "c": nn.Linear(2, 2, bias=False),
    }
    swapped: dict[str, nn.Module] = {
        "b": nn.Linear(2, 2, bias=False),
        "a": nn.Linear(2, 2, bias=False),
    }
    all_of_them: list[dict[str, nn.Module]] = [base(), tied, buffered, flat_shape, renamed, swapped]
    hashes = [Layout.of(nn.ModuleDict(modules)).hash for modules in all_of_them]
    assert len(set(hashes)) == len(hashes)
    assert Layout.of(nn.ModuleDict(base())).hash == hashes[0]


def test_the_hash_is_the_same_in_every_process() -> None:
    """Python's own hashes differ between processes; this one is what federations agree on."""
    code = (
        "from torch import nn; from fededge.flat import Layout; "
        "print(Layout.of(nn.Linear(3, 2)).hash)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    text = '[["weight",[2,3],0,true,[]],["bias",[2],6,true,[]]]'
    assert out.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()


def test_sha256_sees_every_bit_and_the_layout() -> None:
    one, two = Layout.of(nn.Linear(2, 1)), Layout.of(nn.Linear(1, 1, bias=False))
    vector = torch.zeros(3)
    signed = torch.tensor([0.0, 0.0, -0.0])
    assert one.sha256(vector) != one.sha256(signed)
    assert one.sha256(vector) == one.sha256(torch.zeros(6)[::2])
    assert one.sha256(torch.zeros(3)) != Layout.of(nn.Linear(1, 3, bias=False)).sha256(vector)
    with pytest.raises(LayoutError, match=r"3 float32 numbers, got torch.float64 \(3,\)"):
        one.sha256(vector.double())
    with pytest.raises(LayoutError, match=r"1 float32 numbers, got torch.float32 \(3,\)"):
        two.sha256(vector)
