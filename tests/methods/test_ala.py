"""ALA against a loop without caching in double precision, by hand, and against FedAvg."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fededge.errors import MethodError
from fededge.flat import FlatModel
from fededge.method.base import Batch, Method, Objective, Output, TurnView
from fededge.methods import Hyper, Private, Stack, method
from fededge.methods.ala import Ala, FedALA
from fededge.models.base import Classifier
from fededge.training import Answer, Examples, Task
from tests.training_fixtures import Data, Make, Take

Loss = Callable[[Tensor, Tensor], Tensor]

# The layers of `normed` with parameters, from the last one down.
NAMES = ["head", "body.4", "body.2", "body.1"]


def normed(seed: int = 0) -> FlatModel:
    """A network with batch norm and no dropout, for 4x4 images."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = [nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)]
        return FlatModel(Classifier(nn.Sequential(*layers, nn.ReLU()), nn.Linear(5, 3)))


def pooled(seed: int = 0) -> FlatModel:
    """A network without batch norm, its head without a bias, for 8x8 images."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 5)]
        return FlatModel(Classifier(nn.Sequential(*layers), nn.Linear(5, 3, bias=False)))


def reference(
    net: FlatModel,
    w: Tensor,
    private: Private,
    data: Examples,
    layers: int,
    batch_size: int,
    loss: Loss = F.cross_entropy,
    epochs: int | None = None,
    name: str = "ala",
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[float]]:
    """W and Θ̂ by the card, with the whole network in every step: eta 1, all the data.

    Without `epochs` the passes go on until the standard deviation of ten is below 0.1.
    """
    views = net.layout.views
    local = {k: v.double() for k, v in views(private.tensor(f"{name}.local")).items()}
    g = {k: v.double() for k, v in views(w).items()}
    module = copy.deepcopy(net.module).double().train()
    names = [k for k, _ in module.named_parameters()]
    top = [k for k in names if k.rpartition(".")[0] in NAMES[:layers]]
    W = {k: torch.ones_like(local[k]) for k in top}
    if f"{name}.W" in private:
        parts = private.tensor(f"{name}.W").double().split([W[k].numel() for k in top])
        W = {k: part.view_as(local[k]) for k, part in zip(top, parts, strict=True)}
    losses: list[float] = []
    hat = {k: local[k] + (g[k] - local[k]) * W[k] if k in top else g[k] for k in names}
    while True:
        for x, y in zip(data.x.split(batch_size), data.y.split(batch_size), strict=True):
            values = {k: v.detach().requires_grad_() for k, v in hat.items()}
            value = loss(functional_call(module, values, (x.double() / 255,)), y)
            grads = torch.autograd.grad(value, [values[k] for k in top])
            for k, grad in zip(top, grads, strict=True):
                W[k] = (W[k] - grad * (g[k] - local[k])).clamp(0, 1)
                hat[k] = local[k] + (g[k] - local[k]) * W[k]
        losses.append(float(value.detach()))
        if epochs is None:
            if len(losses) > 10 and np.std(losses[-10:]) < 0.1:
                break
        elif len(losses) == epochs:
            break
    start = {k: hat[k].detach() if k in names else local[k] for k in local}
    return W, start, losses


def same(vector: Tensor, tensors: dict[str, Tensor], atol: float = 2e-5) -> bool:
    expected = torch.cat([t.reshape(-1) for t in tensors.values()])
    return torch.allclose(vector.double(), expected, atol=atol)


def moved(w: Tensor, seed: int = 7) -> Tensor:
    """Another global model, some way off; running variances stay above zero."""
    noise = torch.randn(w.shape, generator=torch.Generator().manual_seed(seed))
    return w + 0.3 * noise.abs()


def passes(log: list[Tensor]) -> Method:
    """A layer that notes which examples the loss is asked for before the training begins."""

    def objective(self: Method, r: TurnView, out: Output, batch: Batch) -> Objective:
        if not len(r.start):
            assert batch.index is not None
            log.append(batch.index)
        return Objective()

    kind: type[Method] = type("Passes", (Method,), {"name": "passes", "objective": objective})
    return kind()


def test_one_batch_by_hand(trainer: Make, turn: Take) -> None:
    """Logits z = θ x, one example x = 1 of class 0; Θ_i = (0, 0), Θ = (-1, 1), W = (1, 1), eta 1.

    Θ̂ = Θ: p = (0.1192029, 0.8807971), dL/dΘ̂ = (-0.8807971, 0.8807971), and times Θ - Θ_i
    dL/dW = (0.8807971, 0.8807971): W = (0.1192029, 0.1192029), Θ̂ = (-0.1192029, 0.1192029).
    A second round from there: p_1 = 1/(1 + e^-0.2384058) = 0.5593208, W = 0.1192029 - 0.5593208 is
    below 0, so it is 0, and Θ̂ = Θ_i.
    """
    net = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False)))
    x, y = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    device = trainer("fedala", net, Examples(x, y, x[:0], y[:0], 2))
    w = torch.tensor([-1.0, 1.0])
    private = Private({"fedala.local": torch.zeros(2), "fedala.W": torch.ones(2)})
    answer = turn(device, private, received=w)
    assert answer.private.tensor("fedala.W").tolist() == pytest.approx([0.1192029] * 2, abs=1e-6)
    assert answer.personal.tolist() == pytest.approx([-0.1192029, 0.1192029], abs=1e-6)
    private = private.updated("fedala", {"W": answer.private["fedala.W"]})
    answer = turn(device, private, received=w)
    assert answer.private.tensor("fedala.W").tolist() == [0.0, 0.0]
    assert answer.personal.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_three_turns_are_the_uncached_loop(
    layers: int, examples: Data, trainer: Make, turn: Take
) -> None:
    """First participation, start phase, one pass; two batches of 6, one of 5.

    Batch norm has a batch's own statistics, and its running ones are the device's own.
    """
    net, data = normed(), examples(17, side=4)
    w = net.vector.clone()
    text = f"fedala(share=1, layers={'all' if layers == 4 else layers})"
    device = trainer(text, net, data)
    plain = turn(trainer("fedavg", normed(), data), received=w, batch_size=6)
    first = turn(device, received=w, batch_size=6)
    assert torch.equal(first.upload, plain.upload)
    assert torch.equal(first.personal, w)
    assert set(first.private) == {"fedala.local"}
    assert torch.equal(first.private.tensor("fedala.local"), first.upload)
    private, counts = first.private, []
    for number, epochs in ((1, None), (2, 1)):
        w = moved(w, number)
        answer = turn(device, private, received=w, number=number, batch_size=6)
        W, start, losses = reference(net, w, private, data, layers, 6, epochs=epochs, name="fedala")
        counts.append(len(losses))
        assert same(answer.private.tensor("fedala.W"), W)
        assert 0.0 < float(answer.private.tensor("fedala.W").mean()) < 1.0
        assert same(answer.personal, start)
        goes_on = trainer("fedavg", normed(), data)
        trained = turn(goes_on, received=answer.personal, number=number, batch_size=6)
        assert torch.equal(answer.upload, trained.upload)
        assert torch.equal(answer.private.tensor("fedala.local"), answer.upload)
        private = answer.private
    assert counts[0] >= 11
    assert counts[1] == 1


def test_the_statistics_of_batch_norm_stay_the_devices_own(
    examples: Data, trainer: Make, turn: Take
) -> None:
    net, data = normed(), examples(12, side=4)
    statistics = ~net.layout.trainable.bool()
    device = trainer("fedala", net, data)
    first = turn(device, received=net.vector.clone())
    w = moved(net.vector)
    second = turn(device, first.private, received=w, number=1)
    own = first.private.tensor("fedala.local")
    assert (own[statistics] != w[statistics]).all()
    assert torch.equal(second.personal[statistics], own[statistics])
    below = ~statistics & ~net.layout.mask(net.layout.inside("head")).bool()
    assert torch.equal(second.personal[below], w[below])


def test_without_layers_it_is_fedavg_bit_for_bit(
    deep: Callable[..., FlatModel], examples: Data, trainer: Make, turn: Take
) -> None:
    data, w = examples(13, side=16), deep().vector.clone()
    device, plain = (trainer(m, deep(), data) for m in ("fedavg+ala(layers=none)", "fedavg"))
    private = Private()
    for number in range(3):
        answer = turn(device, private, received=w, number=number)
        expected = turn(plain, received=w, number=number)
        assert torch.equal(answer.upload, expected.upload)
        assert torch.equal(answer.personal, expected.personal)
        assert answer.scalars == expected.scalars
        private, w = answer.private, moved(answer.upload)
    assert not private


@pytest.mark.parametrize("count", ["4", "9", "all", "0", "00"])
def test_zero_layers_and_too_many_layers_mean_all_layers(count: str) -> None:
    """Batch norm counts as a layer; running statistics are no parameters."""
    net = normed()
    top = Ala(layers=count)._top(net.layout)
    assert (top.start, top.stop) == (0, net.layout.size - 16)
    assert Ala(layers="2")._top(net.layout).start == net.layout.inside("body.4")[0].offset


def test_fedala_is_fedavg_with_ala(
    deep: Callable[..., FlatModel], examples: Data, trainer: Make, turn: Take
) -> None:
    """The layer leaves the personal model to its method; `fedala` has one of its own."""
    data, w = examples(13, side=16), deep().vector.clone()
    answers: dict[str, list[Answer]] = {}
    texts = ("fedavg+ala(share=1)", "fedala(share=1)", "fedala(share=1, deploy=trained)")
    for text in texts:
        device, private = trainer(text, deep(), data), Private()
        for number in range(3):
            answer = turn(device, private, received=moved(w, number), number=number)
            answers.setdefault(text, []).append(answer)
            private = answer.private
    for layer, own, trained in zip(*answers.values(), strict=True):
        assert torch.equal(layer.upload, own.upload)
        assert torch.equal(layer.upload, trained.upload)
        assert torch.equal(layer.personal, layer.upload)
        assert torch.equal(trained.personal, trained.upload)
        assert not torch.equal(own.personal, own.upload)


def test_a_device_that_sits_a_round_out_is_initialised_all_the_same(
    deep: Callable[..., FlatModel], examples: Data, trainer: Make, turn: Take
) -> None:
    """The personal model is the start of the turn that it sat out; others keep their last one."""
    data, w = examples(40, side=16), deep().vector.clone()
    device, private = trainer("fedala", deep(), data), Private()
    for number in range(3):
        received = moved(w, number)
        task = Task(0, number, Hyper(1, 4, 0.1, 0.9), received, {})
        refreshed = device.refreshed_accuracy(task, private)
        answer = turn(device, private, received=received, number=number)
        assert refreshed == answer.personal_accuracy
        private = answer.private
    for text in ("fedala(deploy=trained)", "fedavg"):
        assert trainer(text, deep(), data).refreshed_accuracy(task, private) is None


def test_it_leaves_the_personal_model_and_the_phases_to_others() -> None:
    for text in ("map+ala", "ditto+ala", "scaffold+ala", "fedbalance+ala", "fedrod+ala"):
        method(text)
    with pytest.raises(MethodError, match="ditto and fedala cannot be combined"):
        method("ditto+fedala")


def test_w_is_learned_by_the_loss_of_all_layers_and_without_pulls(
    examples: Data, trainer: Make, turn: Take
) -> None:
    """FedLC's loss is in it; FedProx's pull is not, though it changes the training."""
    net, data = normed(), examples(12, side=4)
    w = net.vector.clone()
    shift = -torch.bincount(data.y, minlength=3).clamp(min=1e-8).double().pow(-0.25)

    def calibrated(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z + shift, y)

    learned = {}
    for text in ("fedlc+ala(share=1)", "fedlc+fedprox(mu=5)+ala(share=1)", "fedavg+ala(share=1)"):
        device = trainer(text, net, data)
        private = Private({"ala.local": moved(w, 1), "ala.W": torch.ones(18)})
        answer = turn(device, private, received=w)
        learned[text] = answer.private.tensor("ala.W")
        own = calibrated if "fedlc" in text else F.cross_entropy
        W, _, _ = reference(net, w, private, data, 1, 4, own, epochs=1)
        assert same(learned[text], W)
    assert torch.equal(learned["fedlc+ala(share=1)"], learned["fedlc+fedprox(mu=5)+ala(share=1)"])
    assert not torch.allclose(learned["fedlc+ala(share=1)"], learned["fedavg+ala(share=1)"])


def test_it_wraps_the_start_that_the_layers_before_chose(
    examples: Data, trainer: Make, turn: Take
) -> None:
    hooks: dict[str, Any] = {"name": "off", "begin": lambda self, r, w: w + 1}
    before: type[Method] = type("Off", (Method,), hooks)
    net, data = normed(), examples(8, side=4)
    private = Private({"fedala.local": moved(net.vector), "fedala.W": torch.ones(18)})
    w = net.vector.clone()
    answer = turn(trainer(Stack((before(), FedALA())), net, data), private, received=w)
    body = net.layout.mask(net.layout.inside("body")).bool() & net.layout.trainable.bool()
    assert torch.equal(answer.personal[body], (w + 1)[body])


# The slice


@pytest.mark.parametrize(("count", "share", "length"), [(20, 0.8, 16), (7, 0.5, 3), (1, 0.8, 1)])
def test_a_contiguous_slice_in_order_with_its_last_batch(
    count: int, share: float, length: int, examples: Data, trainer: Make, turn: Take
) -> None:
    """int(share · n) examples, at least one, from any place; a repeated turn has the same ones."""
    net, data = normed(), examples(count, side=4)
    private = Private({"ala.local": moved(net.vector), "ala.W": torch.ones(18)})
    w = net.vector.clone()
    starts = []
    for number in [0, *range(30)]:
        log: list[Tensor] = []
        stack = Stack((passes(log), Ala(share=share, batch_size=5)))
        turn(trainer(stack, net, data), private, received=w, number=number)
        index = torch.cat(log)
        assert torch.equal(index, torch.arange(length) + index[0])
        assert [len(part) for part in log] == [5] * (length // 5) + [length % 5] * (length % 5 > 0)
        starts.append(int(index[0]))
    assert starts[0] == starts[1]
    assert set(starts) == set(range(count - length + 1))


def test_the_batches_are_those_of_the_training_unless_it_says_otherwise(
    examples: Data, trainer: Make, turn: Take
) -> None:
    net, data = normed(), examples(10, side=4)
    private = Private({"ala.local": moved(net.vector), "ala.W": torch.ones(18)})
    for size, expected in ((0, [4, 4]), (3, [3, 3, 2])):
        log: list[Tensor] = []
        stack = Stack((passes(log), Ala(batch_size=size)))
        turn(trainer(stack, net, data), private, received=net.vector.clone(), batch_size=4)
        assert [len(part) for part in log] == expected


# The start phase


@pytest.mark.parametrize(
    ("options", "count", "warned"),
    [
        ({"threshold": 1e9}, 11, False),
        ({"threshold": 1e9, "window": 3}, 4, False),
        ({"threshold": 0.0, "max_epochs": 14}, 14, True),
        ({"threshold": 1e9, "max_epochs": 5}, 5, True),
    ],
)
def test_the_start_phase_ends_when_the_losses_settle(
    options: dict[str, Any],
    count: int,
    warned: bool,
    examples: Data,
    trainer: Make,
    turn: Take,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At least one pass more than the window; never more than `max_epochs`, which is said."""
    net, data = normed(), examples(10, side=4)
    log: list[Tensor] = []
    stack = Stack((passes(log), Ala(share=1, **options)))
    private = Private({"ala.local": moved(net.vector)})
    with caplog.at_level(logging.WARNING, "fededge.methods.ala"):
        answer = turn(trainer(stack, net, data), private, received=net.vector.clone())
    assert len(log) == 3 * count
    text = f"ala: on d1 the weights W have not converged after {count} epochs"
    assert [text in line for line in caplog.messages] == [True] * warned
    log.clear()
    turn(trainer(stack, net, data), answer.private, received=net.vector.clone(), number=1)
    assert len(log) == 3


def test_the_layers_below_run_once_per_batch(examples: Data, trainer: Make, turn: Take) -> None:
    net, data = normed(), examples(10, side=4)
    counts = {"body.1": 0, "body.4": 0, "head": 0}

    def counting(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            counts[name] += 1

        return hook

    for name in counts:
        net.module.get_submodule(name).register_forward_hook(counting(name))
    steps = 3
    plain = dict.fromkeys(counts, 0)
    for text, found in (("fedavg", plain), ("fedavg+ala(share=1, layers=2, threshold=1e9)", {})):
        counts.update(dict.fromkeys(counts, 0))
        private = Private({"ala.local": moved(net.vector)})
        turn(trainer(text, net, data), private, received=net.vector.clone())
        found.update(counts)
        if text != "fedavg":
            assert found["body.1"] - plain["body.1"] == steps
            assert found["body.4"] - plain["body.4"] == 11 * steps
            assert found["head"] - plain["head"] == 11 * steps


@pytest.mark.parametrize("at_once", [3, 8, 256])
def test_layers_that_take_each_example_alone_take_any_number_at_once(
    at_once: int, examples: Data, trainer: Make, turn: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W of the uncached loop, with convolution and pooling below, whatever the parts are."""
    monkeypatch.setattr("fededge.methods.ala.INFERENCE_BATCH", at_once)
    net, data = pooled(), examples(17, side=8)
    w, sizes = net.vector.clone(), []
    stage = net.module.get_submodule("body.0")
    stage.register_forward_hook(lambda _, x, __: sizes.append(len(x[0])))
    private = Private(
        {"ala.local": moved(w), "ala.W": torch.ones(net.layout.inside("head")[0].size)}
    )
    answer = turn(trainer("fedavg+ala(share=1)", net, data), private, received=w, batch_size=6)
    W, _, _ = reference(pooled(), w, private, data, 1, 6, epochs=1)
    assert same(answer.private.tensor("ala.W"), W)
    assert 0.0 < float(answer.private.tensor("ala.W").mean()) < 1.0
    parts = [len(part) for part in torch.arange(17).split(at_once)]
    assert sizes[: len(parts)] == parts
    assert sizes[len(parts) : len(parts) + 3] == [6, 6, 5]


@pytest.mark.parametrize("layers", ["1", "2"])
def test_the_network_is_as_it_was_after_w_is_learned(
    layers: str, examples: Data, trainer: Make
) -> None:
    """Values, what is trained, and where the tensors lie; even if the loss fails."""

    def failing(self: Method, r: TurnView, out: Output, batch: Batch) -> Objective:
        raise ZeroDivisionError

    net, data = normed(), examples(10, side=4)
    net.module.get_parameter("body.1.weight").requires_grad_(False)
    before, w = net.vector.clone(), moved(net.vector, 2)
    private = Private({"ala.local": moved(net.vector)})
    task = Task(0, 1, Hyper(1, 4, 0.1, 0.9), w, {})
    broken: type[Method] = type("Broken", (Method,), {"name": "broken", "objective": failing})
    for stack in (Stack((Ala(layers=layers),)), Stack((broken(), Ala(layers=layers)))):
        device = trainer(stack, net, data)
        with contextlib.suppress(ZeroDivisionError):
            stack.begin(device._turn(task, private))
        assert torch.equal(net.vector, before)
        assert net.bound
        frozen = [name for name, p in net.module.named_parameters() if not p.requires_grad]
        assert frozen == ["body.1.weight"]


def test_a_loss_may_ask_for_the_inputs(examples: Data, trainer: Make, turn: Take) -> None:
    seen: list[bool] = []

    def objective(self: Method, r: TurnView, out: Output, batch: Batch) -> Objective:
        assert batch.index is not None
        seen.append(torch.equal(batch.x, data.x[batch.index].float() / 255))
        return Objective()

    kind: type[Method] = type("Looking", (Method,), {"name": "looking", "objective": objective})
    net, data = normed(), examples(10, side=4)
    private = Private({"ala.local": moved(net.vector), "ala.W": torch.ones(18)})
    turn(trainer(Stack((kind(), Ala())), net, data), private, received=net.vector.clone())
    assert seen == [True] * (2 + 3)


# Devices


def test_a_device_without_examples_overwrites_and_keeps_nothing(
    examples: Data, trainer: Make, turn: Take
) -> None:
    net = normed()
    device, w = trainer("fedala", net, examples(0, side=4)), net.vector.clone()
    answer = turn(device, received=w)
    assert not answer.private
    kept = Private({"fedala.local": moved(w), "fedala.W": torch.ones(18)})
    answer = turn(device, kept, received=w)
    assert torch.equal(answer.personal, w)
    assert torch.equal(answer.private.tensor("fedala.local"), kept.tensor("fedala.local"))


def test_its_randomness_does_not_touch_the_training(
    deep: Callable[..., FlatModel], examples: Data, trainer: Make, turn: Take
) -> None:
    """With eta 0 and W = 1 it begins from Θ, up to rounding: batches and dropout are FedAvg's."""
    data, w = examples(13, side=16), deep().vector.clone()
    private = Private({"ala.local": w.clone(), "ala.W": torch.ones(27)})
    answer = turn(trainer("fedavg+ala(eta=0)", deep(), data), private, received=w)
    expected = turn(trainer("fedavg", deep(), data), received=w)
    assert torch.equal(answer.upload, expected.upload)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("ala(eta=-1)", "eta must be at least 0"),
        ("ala(share=0)", "share must lie above 0 and be at most 1"),
        ("ala(share=1.5)", "share must lie above 0 and be at most 1"),
        ("ala(layers=-1)", "layers must be a whole number, 'all' or 'none'"),
        ("ala(layers=head)", "layers must be a whole number, 'all' or 'none'"),
        ("ala(threshold=-1)", "threshold must be at least 0"),
        ("ala(window=0)", "window must be at least 1"),
        ("ala(max_epochs=0)", "max_epochs must be at least 1"),
        ("fedala(batch_size=-1)", "batch_size must be at least 0"),
    ],
)
def test_a_bad_option_is_refused(text: str, rule: str) -> None:
    with pytest.raises(MethodError, match=f"^(fed)?ala\\(.*\\): {rule}$"):
        method(text)


def test_the_defaults_are_the_papers() -> None:
    assert str(FedALA()) == (
        "fedala(eta=1.0, share=0.8, layers=1, threshold=0.1, window=10, max_epochs=100, "
        "batch_size=0, deploy=initialised)"
    )
    with pytest.raises(MethodError, match="must be one of initialised, trained; got 'none'"):
        method("fedala(deploy=none)")
