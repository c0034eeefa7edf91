"""Properties of the compiled losses beyond their formulas: torch integration, and exact bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch.overrides import TorchFunctionMode

from fededge import ops
from fededge.ops import _backend
from tests.ops.levels import UNFUSED, each_level

pytestmark = pytest.mark.skipif(_backend.CHOICE.name != "cpu", reason=_backend.CHOICE.reason)

Arguments = dict[str, Any]

# opcheck's own copies of the arguments are no leaves.
copies = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def cases(rows: int, classes: int, dtype: torch.dtype) -> Iterator[tuple[str, Arguments]]:
    """All parts of `label_loss` in five calls."""
    y = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(1))
    A = draw(2, classes, classes, dtype=dtype)
    added = draw(3, rows, classes, dtype=dtype).requires_grad_()
    target = draw(4, rows, classes, dtype=dtype).softmax(1)
    scale = draw(5, classes, dtype=dtype).abs()
    one: Arguments = {"labels": [y], "shares": [1.0]}
    two: Arguments = {"labels": [y, y.flip(0)], "shares": [0.3, 0.7]}
    yield "fedacd", {**one, "shift": A, "factor": A.exp(), "flat": 1.0}
    yield "mixed fedacd", {**two, "shift": A, "factor": A.exp(), "flat": 1.0}
    yield "two gradients", {**two, "scale": scale, "added": added, "shift": A[0]}
    yield "fused logits", {**one, "added": added, "added_scale": scale}
    yield "soft", {"labels": [], "shares": [], "soft": 1.0, "target": target}


@copies
@pytest.mark.parametrize("classes", [5, 40])
@pytest.mark.parametrize("case", range(5))
def test_torch_understands_label_loss(case: int, classes: int) -> None:
    _, k = list(cases(6, classes, torch.float32))[case]
    z = draw(6, 6, classes).requires_grad_()
    for op in (torch.ops.fededge.label_loss, torch.ops.fededge.label_loss_forward):
        opcheck(op.default, (z, k.pop("labels"), k.pop("shares")), k)
        _, k = list(cases(6, classes, torch.float32))[case]


@copies
def test_torch_understands_the_other_ops() -> None:
    z, teacher = draw(6, 6, 5).requires_grad_(), draw(7, 6, 5)
    y = torch.tensor([0, 1, 2, 3, 4, 0])
    for without in (None, y):
        opcheck(torch.ops.fededge.distillation.default, (z, teacher, 2.0, without))
        opcheck(torch.ops.fededge.distillation_forward.default, (z, teacher, 2.0, without))
    num, den = torch.zeros(5, 5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    opcheck(torch.ops.fededge.probability_sums_.default, (num, den, teacher, [y], [1.0]))


def test_a_compiled_function_has_the_same_loss_and_gradient() -> None:
    y, A = torch.tensor([0, 1, 2, 3]), draw(2, 5, 5)

    def loss(z: Tensor) -> Tensor:
        return 2 * ops.label_loss(z.tanh(), (y,), shift=A, factor=A.exp(), flat=1.0)

    results = []
    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        z = draw(6, 4, 5).requires_grad_()
        value = function(z)
        results.append((value.detach(), torch.autograd.grad(value, z)[0]))
    torch.testing.assert_close(results[0], results[1])


def test_a_call_without_torchs_dispatch_of_types_is_the_op_itself() -> None:
    """To the bit; and modes and subclasses, which only `torch.ops` serves, are left to it."""

    class Counting(TorchFunctionMode):
        seen: ClassVar[list[str]] = []

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    z, y = draw(6, 4, 5), torch.tensor([0, 1, 2, 3])
    loss = ops.label_loss(z, (y,), flat=1.0)
    given = ([y], [1.0], 1.0, 1.0, 0.0, None, None, None, None, None)
    assert torch.equal(loss, torch.ops.fededge.label_loss(z, *given))
    with Counting():
        assert torch.equal(loss, ops.label_loss(z, (y,), flat=1.0))
    assert any("label_loss" in name for name in Counting.seen)
    assert torch.equal(loss, ops.label_loss(z.as_subclass(Marked), (y,), flat=1.0))


class Marked(Tensor):
    pass


def test_arguments_of_another_kind_are_torchs_to_refuse() -> None:
    with pytest.raises((RuntimeError, TypeError), match="label_loss"):
        ops.label_loss(torch.zeros(2, 3), ("a", "b"))  # type: ignore[arg-type]


def test_the_last_backward_pass_hands_its_gradient_out_and_an_earlier_one_does_not() -> None:
    z = draw(6, 4, 5).requires_grad_()
    loss = ops.label_loss(z, (torch.tensor([0, 1, 2, 3]),))
    (first,) = torch.autograd.grad(loss, z, retain_graph=True)
    kept = first.clone()
    first.zero_()
    (second,) = torch.autograd.grad(loss, z)
    assert torch.equal(second, kept)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, z)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, for jvp
def test_a_derivative_by_forward_mode_is_refused_instead_of_missing() -> None:
    y = torch.tensor([0, 1, 2, 3])
    with pytest.raises(RuntimeError, match="label_loss has no forward-mode derivative"):
        torch.func.jvp(lambda z: ops.label_loss(z, (y,)), (draw(6, 4, 5),), (draw(7, 4, 5),))


def test_a_second_derivative_is_refused_instead_of_wrong() -> None:
    z = draw(6, 4, 5).requires_grad_()
    loss = ops.label_loss(z, (torch.tensor([0, 1, 2, 3]),), flat=1.0)
    (slope,) = torch.autograd.grad(loss, z, create_graph=True)
    with pytest.raises(RuntimeError, match="label_loss is fused with its gradient and has no"):
        slope.square().sum().backward()


def test_backward_can_be_asked_twice_and_scaled() -> None:
    """The kept gradient is handed out as it is where nothing scales it: it must not change."""
    z = draw(6, 4, 5).requires_grad_()
    loss = ops.label_loss(z, (torch.tensor([0, 1, 2, 3]),), flat=1.0)
    (one,) = torch.autograd.grad(loss, z, retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    (3 * loss).backward()
    assert z.grad is not None
    torch.testing.assert_close(z.grad, 5 * one)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("name", ["scale", "shift", "factor", "added_scale", "target"])
def test_a_gradient_that_would_be_missing_is_refused(name: str) -> None:
    given = torch.ones(5) if name.endswith("scale") else torch.ones(5, 5)
    k: Arguments = {"shift": torch.ones(5, 5), "added": torch.ones(5, 5)}
    k[name] = given.requires_grad_()
    with pytest.raises(RuntimeError, match=f"^label_loss: {name} requires a gradient, which this"):
        ops.label_loss(torch.zeros(5, 5), (torch.arange(5),), **k)


WRONG: list[tuple[Arguments, str]] = [
    (
        {"scale": torch.ones(4)},
        r"scale has shape \[4\], which does not fit logits of shape",
    ),
    ({"shift": torch.ones(2, 3)}, r"shift has shape \[2, 3\]"),
    ({"added": torch.ones(3, 3)}, r"added has shape \[3, 3\]"),
    ({"added_scale": torch.ones(3)}, "there is a scale for added logits, but none are added"),
    ({"added": torch.ones(2, 3), "added_scale": torch.ones(4)}, r"added_scale has shape \[4\]"),
    ({"target": torch.ones(2, 4)}, r"target has shape \[2, 4\]"),
    ({"factor": torch.ones(3, 3)}, "a factor needs the shift"),
    ({"labels": []}, "there are 0 labellings and 1 shares"),
    ({"labels": [], "shares": []}, "there are neither labels nor a target"),
    ({"z": torch.ones(3)}, r"the logits have shape \[3\], they must be"),
    ({"z": torch.ones(2, 1), "flat": 1.0}, "flattening needs labels and at least two classes"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_arguments_that_do_not_fit_are_named(change: Arguments, message: str) -> None:
    k = {"z": torch.zeros(2, 3), "labels": [torch.zeros(2).long()], "shares": [1.0], **change}
    with pytest.raises(ValueError, match=f"^label_loss: {message}"):
        ops.label_loss(**k)


def bits() -> str:
    """All losses and gradients at shapes for both kinds of lanes, with full and partial packs."""
    digest = hashlib.sha256()
    for dtype in (torch.float32, torch.float64):
        for rows, classes in ((37, 10), (1500, 31), (600, 100), (40, 1000)):
            z = draw(8, rows, classes, dtype=dtype).requires_grad_()
            losses = [ops.label_loss(z, **k) for _, k in cases(rows, classes, dtype)]
            losses.append(ops.distillation(z, draw(9, rows, classes, dtype=dtype), 2.0))
            for loss in losses:
                (slope,) = torch.autograd.grad(loss, z)
                digest.update(loss.detach().numpy().tobytes() + slope.numpy().tobytes())
            num, den = torch.zeros(classes, classes).double(), torch.zeros(classes).double()
            y = torch.arange(rows) % classes
            ops.probability_sums_(num, den, z.detach(), (y,))
            digest.update(num.numpy().tobytes() + den.numpy().tobytes())
    return digest.hexdigest()


LABELS: dict[str, Callable[[int, int], Tensor]] = {
    "one class": lambda rows, classes: torch.full((rows,), classes - 1),
    "two classes": lambda rows, classes: (torch.arange(rows) % 5 == 0).long() * (classes - 1),
    "all classes": lambda rows, classes: torch.arange(rows) * 7 % classes,
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("classes", [10, 40, 300])
def test_sums_by_class_are_the_same_with_any_number_of_threads(kind: str, classes: int) -> None:
    """Threads have classes of their own: there may be fewer of these than there are threads."""
    rows = 200_000 // classes
    z, y = draw(5, rows, classes, dtype=torch.float32), LABELS[kind](rows, classes)
    expected = torch.zeros(classes, classes).double().index_add_(0, y, z.double().softmax(1))
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            num, den = torch.zeros(classes, classes).double(), torch.zeros(classes).double()
            ops.probability_sums_(num, den, z, (y,))
            found.append((num, den))
    finally:
        torch.set_num_threads(threads)
    for num, den in found:
        assert torch.equal(num, found[0][0])
        assert torch.equal(den, y.bincount(minlength=classes).double())
    torch.testing.assert_close(found[0][0], expected, rtol=2e-6, atol=2e-6)


def test_runs_and_threads_give_the_same_bits_and_so_do_instruction_sets_that_fuse() -> None:
    threads = torch.get_num_threads()
    digests: dict[str, set[str]] = {}
    try:
        for level in each_level():
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                digests.setdefault(level, set()).add(bits())
    finally:
        torch.set_num_threads(threads)
    assert all(len(found) == 1 for found in digests.values())
    fused = [found for level, found in digests.items() if level not in UNFUSED]
    assert all(found == fused[0] for found in fused)


@pytest.mark.parametrize("classes", [10, 40, 300])
def test_every_instruction_set_gives_the_same_but_for_last_bits(classes: int) -> None:
    found = []
    for _ in each_level():
        z = draw(8, 37, classes).requires_grad_()
        losses = [ops.label_loss(z, **k) for _, k in cases(37, classes, torch.float32)]
        found.append([value for loss in losses for value in (loss, *torch.autograd.grad(loss, z))])
    for one in found:
        for mine, first in zip(one, found[0], strict=True):
            assert (mine - first).norm() <= 2e-6 * first.norm()


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "label_loss": lambda z: ops.label_loss(z, (torch.tensor([0, 1, 2, 3]),), flat=1.0),
    "distillation": lambda z: ops.distillation(z, draw(7, 4, 5), 2.0),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("inner", [torch.clone, torch.tanh], ids=["leaf", "tanh"])
def test_a_second_derivative_is_refused_whatever_it_is_asked_by(
    name: str, inner: Callable[[Tensor], Tensor]
) -> None:
    """Left out, what lies below the loss would have one all the same: half of the truth."""
    z, by = draw(6, 4, 5).requires_grad_(), torch.ones((), requires_grad=True)
    wrong = f"{name} is fused with its gradient and has no second derivative"
    for leaf in (z, by):
        (slope,) = torch.autograd.grad(by * LOSSES[name](inner(z)), z, create_graph=True)
        with pytest.raises(RuntimeError, match=wrong):
            torch.autograd.grad(slope.square().sum(), leaf)
    (slope,) = torch.autograd.grad(LOSSES[name](inner(z)), z, create_graph=True)
    with pytest.raises(RuntimeError, match=wrong):
        slope.square().sum().backward()


@pytest.mark.parametrize("name", LOSSES)
def test_a_functional_gradient_is_the_gradient(name: str) -> None:
    z = draw(6, 4, 5).requires_grad_()
    (expected,) = torch.autograd.grad(LOSSES[name](z.tanh()), z)
    found = torch.func.grad(lambda z: LOSSES[name](z.tanh()))(z.detach())
    assert torch.equal(found, expected)
