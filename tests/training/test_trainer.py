"""The local loop: which steps are taken, on which examples, and what comes of a turn."""

from __future__ import annotations

import dataclasses
import gc
import math
import platform
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.config import TrainingConfig
from fededge.errors import LayoutError, MethodError
from fededge.flat import FlatModel
from fededge.method.base import Batch, Finish, Follows, Phase, TurnView
from fededge.methods import Hyper, Method, Private, Stack, method
from fededge.models.base import Classifier
from fededge.training import Examples, Task, Trainer, batch_sizes, steps_of
from fededge.training.step import own_randomness, training_only
from fededge.wire.messages import Training


def seeded(build: Callable[[], nn.Module]) -> FlatModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return FlatModel(build())


def linear() -> FlatModel:
    return seeded(lambda: Classifier(nn.Flatten(), nn.Linear(4, 3)))


def normed() -> FlatModel:
    """Batch norm whose batches must hold two examples, and dropout."""

    def build() -> nn.Module:
        layers = (nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
        return Classifier(nn.Sequential(*layers), nn.Linear(5, 3))

    return seeded(build)


def data(count: int, held: int = 3) -> Examples:
    draw = torch.Generator().manual_seed(count)
    x = torch.rand(count + held, 1, 2, 2, generator=draw)
    y = torch.randint(0, 3, (count + held,), generator=draw)
    return Examples(x[:count], y[:count], x[count:], y[count:], 3)


def device(net: FlatModel, examples: Examples, kind: Stack | None = None) -> Trainer:
    return Trainer("d1", net, nn.Identity(), examples, kind or method("fedavg"))


def task(net: FlatModel, received: Tensor | None = None, **hyper: Any) -> Task:
    settings = Hyper(**{"batch_size": 4, "lr": 0.1, **hyper})
    return Task(0, 0, settings, net.vector.clone() if received is None else received, {})


def watching(seen: list[Tensor], **more: Any) -> Stack:
    """FedAvg that notes which examples each batch holds."""

    def batch(self: Method, r: TurnView, batch: Batch) -> Batch:
        assert batch.index is not None
        seen.append(batch.index)
        return batch

    kind: type[Method] = type("Watching", (Method,), {"name": "watching", "batch": batch, **more})
    return Stack((kind(),))


# Batches


@pytest.mark.parametrize(
    ("examples", "size", "batches"),
    [
        (0, 4, []),
        (1, 4, [1]),
        (3, 4, [3]),
        (4, 4, [4]),
        (5, 4, [5]),
        (6, 4, [4, 2]),
        (9, 4, [4, 5]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_no_batch_of_one_is_left_over(examples: int, size: int, batches: list[int]) -> None:
    assert batch_sizes(examples, size) == batches


def test_a_pass_takes_every_example_once_in_a_new_order() -> None:
    seen: list[Tensor] = []
    net = linear()
    device(net, data(10), watching(seen)).turn(task(net, epochs=2), Private())
    passes = [torch.cat(seen[:3]), torch.cat(seen[3:])]
    assert [len(index) for index in seen] == [4, 4, 2] * 2
    assert all(sorted(order.tolist()) == list(range(10)) for order in passes)
    assert passes[0].tolist() != passes[1].tolist()
    assert passes[0].tolist() != list(range(10))


@pytest.mark.parametrize(
    ("phases", "steps"),
    [
        ([Phase()], [15]),
        ([Phase(share=0.5), Phase(share=0.5)], [7, 8]),
        ([Phase(share=0.3), Phase(share=0.3), Phase(share=0.4)], [4, 4, 7]),
        ([Phase(epochs=2), Phase()], [6, 15]),
        ([Phase(), Phase(epochs=2)], [15, 6]),
        ([Phase(share=0.5), Phase(epochs=1), Phase(share=0.5)], [7, 3, 8]),
        ([Phase(epochs=0), Phase(epochs=4)], [0, 12]),
    ],
)
def test_steps_are_shared_and_none_is_lost(phases: list[Phase], steps: list[int]) -> None:
    """Five epochs of three batches."""
    assert steps_of(phases, epochs=5, batches=3) == steps


# A turn


def test_a_turn_is_sgd_from_the_received_model() -> None:
    """Against torch.optim on an ordinary module, with the batches that the turn took."""
    seen: list[Tensor] = []
    net, examples, plain = linear(), data(10), linear().module
    received = torch.randn(15, generator=torch.Generator().manual_seed(1))
    answer = device(net, examples, watching(seen)).turn(
        task(net, received, epochs=3, weight_decay=0.05), Private()
    )
    FlatModel(plain).load(received)
    optimiser = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, weight_decay=0.05)
    losses = []
    for index in seen:
        optimiser.zero_grad()
        loss = F.cross_entropy(plain(examples.x[index]), examples.y[index])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert torch.allclose(answer.upload, FlatModel(plain).vector, atol=1e-6)
    assert answer.scalars["loss"] == pytest.approx(sum(losses) / 9, rel=1e-5)
    assert (answer.scalars["examples"], answer.scalars["steps"]) == (10.0, 9.0)
    assert torch.equal(answer.personal, answer.upload)


@pytest.mark.parametrize(("clip", "clipped"), [(0.5, True), (1e6, False)])
def test_a_long_gradient_is_clipped_as_torch_does_it(clip: float, clipped: bool) -> None:
    """The head alone learns: its gradient is clipped, before weight decay and momentum."""
    seen: list[Tensor] = []
    net, examples, plain = linear(), data(10), linear().module
    plan = (Phase("tune", epochs=3, part=("head.weight",)),)
    hooks = {"phases": lambda self, r: plan, "passes": lambda self, hyper: 3}
    stack = watching(seen, phase_names=("tune",), **hooks)
    asked = task(net, weight_decay=0.05, clip_norm=clip)
    answer = device(net, examples, stack).turn(asked, Private())
    assert isinstance(plain, Classifier)
    weight = plain.head.get_parameter("weight")
    optimiser = torch.optim.SGD([weight], 0.1, momentum=0.9, weight_decay=0.05)
    norms = []
    for index in seen:
        optimiser.zero_grad()
        F.cross_entropy(plain(examples.x[index]), examples.y[index]).backward()
        norms.append(float(nn.utils.clip_grad_norm_([weight], clip)))
        optimiser.step()
    assert (max(norms) > clip) == clipped
    assert torch.allclose(answer.upload[:12], weight.detach().flatten(), atol=1e-6)
    without = device(net, examples, stack).turn(
        task(net, asked.received, weight_decay=0.05), Private()
    )
    assert torch.equal(without.upload, answer.upload) != clipped


def test_configuration_message_and_hyper_parameters_have_the_same_fields() -> None:
    names = [field.name for field in dataclasses.fields(Hyper)]
    assert [field.name for field in msgspec.structs.fields(TrainingConfig)] == names
    assert [field.name for field in msgspec.structs.fields(Training)] == names


def test_the_answer_does_not_change_when_the_network_goes_on() -> None:
    net = linear()
    trainer = device(net, data(8))
    answer = trainer.turn(task(net), Private())
    upload, personal = answer.upload.clone(), answer.personal.clone()
    trainer.turn(task(net, epochs=2), Private())
    net.vector.zero_()
    assert torch.equal(answer.upload, upload)
    assert torch.equal(answer.personal, personal)


def test_a_turn_is_gone_when_it_is_over() -> None:
    """Its vectors do not wait for the garbage collector, which counts objects and not bytes."""

    def begin(self: Method, r: TurnView, w: Tensor) -> Tensor:
        r.memo["teacher"] = r.teacher(w)
        r.memo["teacher"](r.batch(torch.arange(2)))
        return w + 0

    kind: type[Method] = type("Taught", (Method,), {"name": "taught", "begin": begin})
    net = linear()
    trainer, asked = device(net, data(8), Stack((kind(),))), task(net)
    received = weakref.ref(asked.received)
    gc.disable()
    try:
        answer = trainer.turn(asked, Private())
        del asked
        assert received() is None
    finally:
        gc.enable()
    assert torch.isfinite(answer.upload).all()


def test_accuracy_is_of_the_held_out_examples() -> None:
    net, examples = linear(), data(8, held=40)
    answer = device(net, examples).turn(task(net, epochs=5), Private())
    z = examples.held_x.flatten(1) @ answer.upload[:12].view(3, 4).T + answer.upload[12:]
    expected = (z.argmax(1) == examples.held_y).double().mean().item()
    assert answer.personal_accuracy == answer.scalars["personal_accuracy"] == expected
    assert device(net, examples).accuracy(answer.upload) == expected


def test_without_held_out_examples_no_accuracy_is_reported() -> None:
    net = linear()
    answer = device(net, data(8, held=0)).turn(task(net), Private())
    assert math.isnan(answer.personal_accuracy)
    assert "personal_accuracy" not in answer.scalars


def test_a_device_without_examples_sends_what_it_got() -> None:
    net = normed()
    received = net.vector.clone()
    answer = device(net, data(0)).turn(task(net, epochs=3), Private())
    assert torch.equal(answer.upload, received)
    assert (answer.scalars["steps"], answer.scalars["loss"]) == (0.0, 0.0)


@pytest.mark.parametrize(("count", "size"), [(1, 4), (5, 1)])
def test_batches_of_one_example_use_the_running_statistics(count: int, size: int) -> None:
    """Torch's batch norm refuses them in training mode; the statistics then stay as they are."""
    net = normed()
    statistics = net.layout.trainable == 0
    received = net.vector.clone()
    answer = device(net, data(count)).turn(task(net, epochs=2, batch_size=size), Private())
    assert torch.isfinite(answer.upload).all()
    assert torch.equal(answer.upload[statistics], received[statistics])
    assert not torch.equal(answer.upload, received)
    usual = device(net, data(8)).turn(task(net, received), Private())
    assert not torch.equal(usual.upload[statistics], received[statistics])


def test_frozen_parameters_stay_under_weight_decay_and_momentum() -> None:
    net = normed()
    net.module.get_submodule("body").requires_grad_(False)
    body = net.layout.mask(net.layout.inside("body")) * net.layout.trainable
    received = net.vector.clone()
    answer = device(net, data(8)).turn(task(net, epochs=3, weight_decay=0.5), Private())
    changed = answer.upload != received
    assert not (changed & body.bool()).any()
    assert changed[net.layout.mask(net.layout.inside("head")).bool()].all()


def test_dropout_is_reproducible_and_on() -> None:
    uploads = []
    for _ in range(2):
        net = normed()
        uploads.append(device(net, data(12)).turn(task(net, epochs=2), Private()).upload)
        torch.rand(3)
    assert torch.equal(uploads[0], uploads[1])
    net = normed()
    for part in net.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    without = device(net, data(12)).turn(task(net, epochs=2), Private())
    assert not torch.equal(without.upload, uploads[0])


def test_random_numbers_of_a_start_do_not_change_the_dropout() -> None:
    """Else a layer with a start of its own could not be compared with FedAvg."""

    def begin(self: Method, r: TurnView, w: Tensor) -> Tensor:
        torch.rand(7)
        return w

    drawing: type[Method] = type("Drawing", (Method,), {"name": "drawing", "begin": begin})
    uploads = []
    for stack in (Stack((drawing(),)), method("fedavg")):
        net = normed()
        uploads.append(device(net, data(12), stack).turn(task(net), Private()).upload)
    assert torch.equal(uploads[0], uploads[1])


def test_a_gradient_that_torch_optim_unbound_is_bound_again() -> None:
    """A turn after someone's `zero_grad(set_to_none=True)` trains as any other."""
    net, other = linear(), linear()
    torch.optim.SGD(net.module.parameters(), 0.1).zero_grad(set_to_none=True)
    turns = [device(n, data(8)).turn(task(n), Private()) for n in (net, other)]
    assert torch.equal(turns[0].upload, turns[1].upload)
    assert not torch.equal(turns[0].upload, linear().vector)


def test_an_answer_does_not_change_with_the_network() -> None:
    """Upload, personal model and private state are copies: the next turn trains in place."""
    keeps: dict[str, Follows] = {"last": "training"}
    stack = watching([], keeps=keeps, finish=lambda self, r: Finish(private={"last": r.model}))
    net = linear()
    answer = device(net, data(8), stack).turn(task(net), Private())
    kept = answer.private.tensor("watching.last")
    before = [vector.clone() for vector in (answer.upload, answer.personal, kept)]
    net.vector.zero_()
    assert all(map(torch.equal, before, (answer.upload, answer.personal, kept)))


def test_progress_is_told_after_every_step() -> None:
    told: list[tuple[int, int]] = []
    net = linear()
    device(net, data(10)).turn(
        task(net, epochs=2), Private(), lambda done, total: told.append((done, total))
    )
    assert told == [(i, 6) for i in range(1, 7)]


def test_progress_counts_the_steps_of_all_phases() -> None:
    told: list[tuple[int, int]] = []
    plan = (Phase("a", epochs=1, aside=True), Phase("b", 0.5), Phase("c", 0.5))
    names = {"phase_names": ("a", "b", "c"), "aside_names": ("a",)}
    stack = watching([], phases=lambda self, r: plan, **names)
    net = linear()
    answer = device(net, data(8), stack).turn(
        task(net, epochs=2), Private(), lambda done, total: told.append((done, total))
    )
    assert told == [(i, 6) for i in range(1, 7)]
    assert answer.scalars["steps"] == 4.0


# Failures


def test_a_training_that_diverges_is_one_sentence() -> None:
    net = linear()
    with pytest.raises(MethodError) as caught:
        device(net, data(8)).turn(task(net, epochs=50, lr=3e38), Private())
    assert str(caught.value).startswith("device d1, round 1, step ")
    assert str(caught.value).endswith("the training diverged: lower the learning rate (3e+38)")


def test_a_model_that_no_coordinator_would_take_is_not_sent() -> None:
    """Its numbers are finite, and so large that they would fail the merge of all devices."""
    net = linear()
    with pytest.raises(
        MethodError, match=r"a number of the model has moved by .*e\+2\d; the train"
    ):
        device(net, data(4)).turn(task(net, lr=1e20, momentum=0.0, weight_decay=1e6), Private())


def test_a_model_that_is_not_finite_is_not_sent() -> None:
    """The only step's loss is finite; what it leads to is not."""
    net = linear()
    with pytest.raises(MethodError, match="the model to upload is not finite"):
        device(net, data(4)).turn(task(net, lr=1e38, momentum=0.0, weight_decay=1e6), Private())


def test_a_start_of_another_length_is_refused() -> None:
    kind: type[Method] = type(
        "Short", (Method,), {"name": "short", "begin": lambda self, r, w: w[1:]}
    )
    net = linear()
    with pytest.raises(LayoutError, match=r"15 numbers, got shape \(14,\)"):
        device(net, data(4), Stack((kind(),))).turn(task(net), Private())


def test_after_an_error_the_device_can_take_its_next_turn() -> None:
    """Even one in the middle of a phase aside, with a part of the network frozen."""
    plan = (Phase("own", epochs=1, aside=True, part=("head.bias",)), Phase("train"))
    failing = [True]

    def epoch_end(self: Method, r: TurnView) -> None:
        if failing.pop():
            raise MethodError("stop")
        failing.append(False)

    names = {"phase_names": ("own", "train"), "aside_names": ("own",)}
    stack = watching([], phases=lambda self, r: plan, epoch_end=epoch_end, **names)
    net, fresh = linear(), linear()
    received = net.vector.clone()
    trainer = device(net, data(8), stack)
    with pytest.raises(MethodError, match="stop"):
        trainer.turn(task(net, received), Private())
    failing.append(False)
    again = trainer.turn(task(net, received), Private())
    assert torch.equal(
        again.upload, device(fresh, data(8), stack).turn(task(fresh), Private()).upload
    )


# Pieces


def test_training_only_puts_back_what_it_froze() -> None:
    net = normed()
    for frozen in ("body.1.bias", "body.2.weight"):
        net.module.get_parameter(frozen).requires_grad_(False)
    before = {name: p.requires_grad for name, p in net.module.named_parameters()}
    with training_only(net, ("head", "body.1.bias")):
        inside = {name for name, p in net.module.named_parameters() if p.requires_grad}
    assert inside == {"head.weight", "head.bias"}
    assert before == {name: p.requires_grad for name, p in net.module.named_parameters()}
    with training_only(net, ()):
        assert before == {name: p.requires_grad for name, p in net.module.named_parameters()}


def test_own_randomness_comes_from_the_seed_and_leaves_the_global_stream() -> None:
    before = torch.get_rng_state()
    draws = []
    for _ in range(2):
        with own_randomness(torch.Generator().manual_seed(5), torch.device("cpu")):
            draws.append(torch.rand(3))
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert torch.equal(torch.get_rng_state(), before)


FAULTS = """
import resource, torch
from fededge.training import prepare_training
prepare_training()
body = torch.nn.Conv2d(1, 16, 5), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 5)
net = torch.nn.Sequential(*body)
x = torch.zeros(64, 1, 28, 28)
faults = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
for _ in range(20):
    net(x).sum().backward()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(sorted(after - before for before, after in zip(faults, faults[1:]))[10])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="its rules are glibc's")
def test_a_step_reuses_the_memory_of_the_last_one() -> None:
    """Page faults of most steps, in a process of its own: malloc learns from all that was freed."""
    program = [sys.executable, "-c", FAULTS]
    assert int(subprocess.check_output(program, timeout=120)) < 100
