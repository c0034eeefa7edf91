"""A backward pass that begins in C++ against torch's own, which begins in Python."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fededge import ops
from fededge.ops import _backend

pytestmark = pytest.mark.usefixtures("implementation")

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ours": lambda z, y: ops.label_loss(z, (y,), flat=1.0),
    "scaled": lambda z, y: 0.3 * ops.label_loss(z, (y,)),
    "torch's": F.cross_entropy,
    "of one row": lambda z, y: F.cross_entropy(z, y).view(1, 1),
}


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    return nn.Sequential(*layers).to(dtype)


def gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_the_same_bits_and_are_added_up(name: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(7, 1, 6, 6).to(dtype), torch.arange(7) % 5
    found = []
    for backward in (Tensor.backward, ops.backward):
        module = network(dtype)
        for _ in range(2):
            backward(LOSSES[name](module(x), y))
        found.append(gradients(module))
    assert len(found[0]) == 6
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_graph_is_freed() -> None:
    z = torch.zeros(2, 3, requires_grad=True)
    loss = z.exp().sum()
    ops.backward(loss)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        ops.backward(loss)


@pytest.mark.parametrize("shape", [(2, 3), (0,), (2,)])
def test_more_or_less_than_one_number_is_refused(shape: tuple[int, ...]) -> None:
    z = torch.zeros(shape, requires_grad=True)
    wrong = rf"^backward: the loss has shape {list(shape)}, it must be one number$"
    with pytest.raises(ValueError, match=wrong.replace("[", r"\[").replace("]", r"\]")):
        ops.backward(2 * z)
    assert z.grad is None


def test_a_loss_without_a_graph_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^backward: nothing that the loss was computed from req"):
        ops.backward(torch.zeros(()))


def test_a_gradient_by_one_tensor_leaves_every_grad_as_it_was() -> None:
    x, y = torch.randn(7, 1, 6, 6), torch.arange(7) % 5
    module, inner = network(), torch.randn(7, 5, requires_grad=True)

    def loss() -> Tensor:
        return ops.label_loss(module(x) + inner.tanh(), (y,))

    (expected,) = torch.autograd.grad(loss(), inner)
    assert torch.equal(ops.gradient(loss(), inner), expected)
    apart = torch.zeros(2, 3, requires_grad=True)
    assert torch.equal(ops.gradient(loss(), apart), torch.zeros(2, 3))
    assert inner.grad is None
    assert not gradients(module)
    with pytest.raises(RuntimeError, match="does not require grad"):
        ops.gradient(loss(), torch.zeros(3))
    with pytest.raises(ValueError, match=r"^gradient: the loss has shape \[2\], it must be one"):
        ops.gradient(torch.zeros(2, requires_grad=True), inner)
    with pytest.raises(ValueError, match=r"^gradient: nothing that the loss was computed from req"):
        ops.gradient(torch.zeros(()), inner)


class MyError(Exception):
    pass


class Failing(torch.autograd.Function):
    """An error that carries more than its text."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        raise MyError("no slope", 42)


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad[0]


def test_an_error_in_a_backward_function_arrives_as_itself() -> None:
    z = torch.ones(3, requires_grad=True)
    for _ in range(3):  # and leaves everything as it was
        with pytest.raises(MyError) as caught:
            ops.backward(Failing.apply(z).sum())
        assert caught.value.args == ("no slope", 42)
        assert caught.traceback[-1].name == "backward"
    ops.backward(z.sum())
    assert z.grad is not None
    assert z.grad.tolist() == [1, 1, 1]


def test_functions_and_hooks_that_are_written_in_python_run() -> None:
    """One may write to the gradient that all begins with, and spoils no later pass."""
    seen: list[float] = []
    for _ in range(2):
        z = torch.tensor([1.0, 2.0], requires_grad=True)
        loss = Tripled.apply(z).sum()
        loss.register_hook(lambda slope: slope.mul_(2))
        z.register_hook(lambda slope: seen.extend(slope.tolist()))
        z.register_post_accumulate_grad_hook(lambda leaf: seen.append(float(leaf.grad.sum())))
        ops.backward(loss)
    assert seen == [6.0, 24.0, 30.0] * 2


def test_a_pass_within_a_pass() -> None:
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx: Any, *grad: Any) -> Any:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                ops.backward(x.square().sum())
            return x.grad * grad[0]

    z = torch.tensor([1.0, 5.0], requires_grad=True)
    ops.backward(Nested.apply(z).sum())
    assert z.grad is not None
    assert z.grad.tolist() == [2, 10]


def test_threads_have_passes_of_their_own() -> None:
    """Networks that share nothing, and nodes in Python that all want its lock."""

    def train(seed: int, module: nn.Module) -> list[Tensor]:
        draw = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(4, 1, 6, 6, generator=draw)
            z = Tripled.apply(module(x))
            ops.backward(ops.label_loss(z, (torch.arange(4),)))
        return gradients(module)

    alone = [train(seed, network()) for seed in range(4)]
    modules = [network() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(train, range(4), modules))
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Marked(Tensor):
    pass


def test_calls_under_a_mode_and_with_other_tensors_go_to_torch() -> None:
    class Watching(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    z = torch.ones(3, requires_grad=True)
    loss = z.sum()
    with Watching():
        ops.backward(loss)
    ops.backward(z.as_subclass(Marked).sum())
    assert "backward" in seen
    assert z.grad is not None
    assert z.grad.tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
def test_a_compiled_step_goes_back_too() -> None:
    def step(z: Tensor) -> None:
        ops.backward(z.exp().sum())

    for function in (step, torch.compile(step, backend="eager")):
        z = torch.zeros(3, requires_grad=True)
        function(z)
        assert z.grad is not None
        assert z.grad.tolist() == [1, 1, 1]


def test_the_compiled_one_is_what_runs(implementation: str, monkeypatch: Any) -> None:
    """Torch's Python code is passed by, or all of this would compare it with itself."""
    if implementation != "cpu":
        pytest.skip("for the compiled ops")
    monkeypatch.setattr(torch.autograd, "backward", None)
    z = torch.ones(3, requires_grad=True)
    ops.backward(z.sum())
    assert z.grad is not None
    assert _backend.kernels(z) is _backend.direct()
