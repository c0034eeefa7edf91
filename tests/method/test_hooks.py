"""Each part of the method interface: a toy method against a plain reference."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.errors import LayoutError, MethodError
from fededge.flat import FlatModel
from fededge.method.base import (
    Affine,
    Batch,
    Finish,
    Follows,
    Method,
    Objective,
    Output,
    Phase,
    Step,
    TurnView,
    forward,
)
from fededge.method.stack import Stack
from fededge.methods import Hyper, Private
from fededge.methods.fedavg import FedAvg
from fededge.models.evaluation import accuracy
from fededge.training import Examples
from tests.training_fixtures import Data, Make, Nets, Take, observing

Loss = Callable[[Tensor, Tensor], Tensor]

LR = 0.1


def descend(
    w: Tensor, data: Examples, steps: int, loss: Loss = F.cross_entropy, pull: Loss | None = None
) -> Tensor:
    """Full-batch SGD with momentum 0.9 on the linear network, in double precision."""
    x, w = data.x.flatten(1).double() / 255, w.double()
    buffer = torch.zeros_like(w)
    for _ in range(steps):
        w = w.detach().requires_grad_()
        (g,) = torch.autograd.grad(loss(x @ w[:12].view(3, 4).T + w[12:], data.y), w)
        buffer = 0.9 * buffer + g + (0 if pull is None else pull(w.detach(), w))
        w = w.detach() - LR * buffer
    return w


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), atol=2e-6)


def spy(seen: dict[str, list[str]]) -> Method:
    """A layer that changes nothing and notes in which phase each of its hooks is called."""

    def note(hook: str, result: object) -> Callable[..., Any]:
        def call(self: Method, r: TurnView, *rest: object) -> Any:
            seen.setdefault(hook, []).append(r.phase.name)
            return rest[-1] if result is ... else result

        return call

    hooks = {
        "batch": note("batch", ...),
        "objective": note("objective", Objective()),
        "pull": note("pull", None),
        "companions": note("companions", ()),
        "observe": note("observe", None),
        "epoch_end": note("epoch_end", None),
    }
    kind: type[Method] = type("Spy", (Method,), {"name": "spy", **hooks})
    return kind()


# Phases


@dataclass(frozen=True)
class Halves(Method):
    """As MAP: the first half of the steps is sent, the second is the device's own."""

    name: ClassVar[str] = "halves"
    keeps: ClassVar[Mapping[str, Follows]] = {"own": "training"}
    phase_names: ClassVar[tuple[str, ...]] = ("first", "second")
    aside_names: ClassVar[tuple[str, ...]] = ("second",)

    def phases(self, r: TurnView) -> Sequence[Phase]:
        return Phase("first", 0.5), Phase("second", 0.5, aside=True)

    def finish(self, r: TurnView) -> Finish:
        return Finish(private={"own": r.ends["second"]})

    def personal(self, r: TurnView) -> Tensor:
        return r.private.tensor("own")


def test_half_of_the_steps_are_sent_and_the_others_go_on_from_there(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Five steps: two are sent, three follow with new momentum and touch only their own end."""
    data, w = examples(6), plain().vector
    answer = turn(trainer(Halves(), plain(), data), epochs=5, batch_size=6)
    sent = descend(w, data, 2)
    assert close(answer.upload, sent)
    assert close(answer.personal, descend(sent, data, 3))
    assert answer.scalars["steps"] == 2
    assert torch.equal(answer.personal, answer.private.tensor("halves.own"))


def test_the_sent_half_is_fedavg_with_half_the_steps_bit_for_bit(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data = examples(8, side=16)
    halves = turn(trainer(Halves(), deep(), data), epochs=4)
    assert torch.equal(halves.upload, turn(trainer("fedavg", deep(), data), epochs=2).upload)
    assert halves.scalars["loss"] == turn(trainer("fedavg", deep(), data), epochs=2).scalars["loss"]


@pytest.mark.parametrize(
    ("limits", "phases"),
    [
        ({}, {"first"}),
        ({"spy": ("first",)}, {"first"}),
        ({"spy": ("second",)}, {"second"}),
        ({"spy": ("first", "second")}, {"first", "second"}),
    ],
)
def test_a_layer_acts_in_the_phases_of_its_limit_or_on_the_way_to_what_is_sent(
    limits: dict[str, tuple[str, ...]],
    phases: set[str],
    plain: Nets,
    examples: Data,
    trainer: Make,
    turn: Take,
) -> None:
    seen: dict[str, list[str]] = {}
    stack = Stack((spy(seen), Halves()), limits)
    turn(trainer(stack, plain(), examples(8)), epochs=2)
    assert len(seen) == 6
    for hook, where in seen.items():
        assert set(where) == phases, hook


def test_the_owner_of_the_phases_acts_in_all_of_them(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    seen: dict[str, list[str]] = {}
    both = type("Both", (Halves, type(spy(seen))), {"name": "both"})
    turn(trainer(both(), plain(), examples(8)), epochs=2)
    assert {"first", "second"} == set(seen["objective"]) == set(seen["pull"])


@dataclass(frozen=True)
class Beside(Method):
    """As Ditto: a model v of the device's own, trained from where it was, pulled to the global."""

    name: ClassVar[str] = "beside"
    keeps: ClassVar[Mapping[str, Follows]] = {"v": "training"}
    phase_names: ClassVar[tuple[str, ...]] = ("personal", "global")
    aside_names: ClassVar[tuple[str, ...]] = ("personal",)
    lam: float = 1.0

    def phases(self, r: TurnView) -> Sequence[Phase]:
        v = r.private.tensor("v") if "v" in r.private else r.received
        return Phase("personal", epochs=3, aside=True, start=v), Phase("global")

    def pull(self, r: TurnView) -> Affine | None:
        return Affine(self.lam, r.received) if r.phase.name == "personal" else None

    def finish(self, r: TurnView) -> Finish:
        return Finish(private={"v": r.ends["personal"]})

    def personal(self, r: TurnView) -> Tensor:
        return r.private.tensor("v")


def test_a_model_beside_has_its_own_start_pull_and_epochs(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data, w = examples(6), plain().vector
    device = trainer(Beside(), plain(), data)
    v = w.double()
    private = Private()
    for _ in range(2):
        answer = turn(device, private, received=w, batch_size=6, epochs=2)
        v = descend(v, data, 3, pull=lambda own, _: own - w.double())
        private = answer.private
        assert close(answer.personal, v)
        assert close(answer.upload, descend(w, data, 2))
        assert answer.scalars["steps"] == 2


def test_a_model_beside_leaves_the_sent_one_as_fedavgs_bit_for_bit(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Though it trains first: order of batches, dropout and momentum are its own."""
    data = examples(11, side=16)
    uploads = [turn(trainer(m, deep(), data), epochs=2).upload for m in (Beside(), FedAvg())]
    assert torch.equal(uploads[0], uploads[1])


@dataclass(frozen=True)
class Tuned(Method):
    """As FedAvg-C: some passes over a part first, whose end is the personal model."""

    name: ClassVar[str] = "tuned"
    phase_names: ClassVar[tuple[str, ...]] = ("tune", "train")
    epochs: int = 3
    part: str = "head"

    def phases(self, r: TurnView) -> Sequence[Phase]:
        return Phase("tune", epochs=self.epochs, part=(self.part,)), Phase("train")

    def passes(self, hyper: Hyper) -> int:
        return self.epochs + hyper.epochs

    def personal(self, r: TurnView) -> Tensor:
        return r.ends["tune"]


def test_a_phase_may_have_its_own_epochs_and_train_a_part(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    net, data = deep(), examples(8, side=16)
    head = net.layout.mask(net.layout.inside("head")).bool()
    trained, w = net.layout.trainable.bool(), net.vector.clone()
    answer = turn(trainer(Tuned(), net, data), epochs=1, weight_decay=0.1)
    assert answer.scalars["steps"] == 3 * 2 + 1 * 2
    changed = answer.personal != w
    assert torch.equal(changed & trained, head & changed)
    assert changed[head].all()
    assert ((answer.upload != w) & trained & ~head).any()
    assert all(p.requires_grad for p in net.module.parameters())


def test_a_part_that_the_network_lacks_is_one_sentence(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    with pytest.raises(LayoutError, match=r"no part 'neck' \(it has head\)"):
        turn(trainer(Tuned(part="neck"), plain(), examples(4)))


def test_a_network_with_nothing_to_train_is_one_sentence(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    net = plain()
    net.module.requires_grad_(False)
    with pytest.raises(MethodError, match="phase 'train' has nothing to train: all is frozen"):
        turn(trainer("fedavg", net, examples(4)))


# Further models


@dataclass(frozen=True)
class Fused(Method):
    """As FedBalance: a weak learner of the device's own adds its logits, one backward for both."""

    name: ClassVar[str] = "fused"
    keeps: ClassVar[Mapping[str, Follows]] = {"psi": "training"}

    def begin(self, r: TurnView, w: Tensor) -> Tensor:
        psi = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
        psi.vector.fill_(0.25)
        if "psi" in r.private:
            psi.load(r.private.tensor("psi"))
        r.memo["psi"] = psi
        return w

    def companions(self, r: TurnView) -> Sequence[FlatModel]:
        return (r.memo["psi"],)

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        alpha = r.counts / r.examples
        return Objective(added=alpha * r.memo["psi"](batch.x))

    def finish(self, r: TurnView) -> Finish:
        return Finish(private={"psi": r.memo["psi"].vector})


def test_a_companion_is_trained_by_the_same_backward(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data, w = examples(6), plain().vector
    alpha = torch.bincount(data.y, minlength=3).double() / 6
    x = data.x.flatten(1).double() / 255
    device, private = trainer(Fused(), plain(), data), Private()
    psi = torch.full((15,), 0.25, dtype=torch.float64)
    for _ in range(2):
        both = torch.cat([w.double(), psi])
        buffer = torch.zeros_like(both)
        for _ in range(3):
            both = both.detach().requires_grad_()
            phi_z = x @ both[:12].view(3, 4).T + both[12:15]
            psi_z = x @ both[15:27].view(3, 4).T + both[27:]
            (g,) = torch.autograd.grad(F.cross_entropy(phi_z + alpha * psi_z, data.y), both)
            buffer = 0.9 * buffer + g
            both = both.detach() - LR * buffer
        psi = both[15:]
        answer = turn(device, private, received=w, epochs=3, batch_size=6)
        private = answer.private
        assert close(answer.upload, both[:15])
        assert close(private.tensor("fused.psi"), psi)


class TwoHeads(nn.Module):
    """FedROD's personal model: the sum of the generic and the personal head's logits."""

    def __init__(self, generic: nn.Module, personal: nn.Module) -> None:
        super().__init__()
        self.generic = generic
        self.personal = personal

    def forward(self, x: Tensor) -> Tensor:
        out = forward(self.generic, x)
        logits: Tensor = out.logits + self.personal(out.features)
        return logits


@dataclass(frozen=True)
class Heads(Method):
    """As FedROD: a second head of the device's own, which learns what the first leaves."""

    name: ClassVar[str] = "heads"
    keeps: ClassVar[Mapping[str, Follows]] = {"head": "training"}

    def begin(self, r: TurnView, w: Tensor) -> Tensor:
        r.memo["head"] = FlatModel(copy.deepcopy(r.net.module.get_submodule("head")))
        r.memo["head"].load(r.private["head"] if "head" in r.private else torch.zeros(15))
        return w

    def companions(self, r: TurnView) -> Sequence[FlatModel]:
        return (r.memo["head"],)

    def objective(self, r: TurnView, out: Output, batch: Batch) -> Objective:
        def second(out: Output, y: Tensor) -> Tensor:
            logits = out.logits.detach() + r.memo["head"](out.features.detach())
            return F.cross_entropy(logits, y)

        return Objective(terms=(second,))

    def finish(self, r: TurnView) -> Finish:
        return Finish(private={"head": r.memo["head"].vector})

    def network(self, net: nn.Module, data: Examples) -> nn.Module:
        return TwoHeads(copy.deepcopy(net), copy.deepcopy(net.get_submodule("head")))

    def personal(self, r: TurnView) -> Tensor:
        return torch.cat([r.model, r.private.tensor("head")])


def test_a_personal_model_may_be_another_network(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Its values fit `deployed`, which is known before any training; the upload is FedAvg's."""
    data = examples(12, held=9)
    device = trainer(Heads(), plain(), data)
    names = [entry.name for entry in device.deployed.layout.entries]
    assert names[::2] == ["generic.head.weight", "personal.weight"]
    answer = turn(device, epochs=4)
    assert answer.personal.shape == (30,)
    assert close(answer.upload, turn(trainer("fedavg", plain(), data), epochs=4).upload)
    device.deployed.load(answer.personal)
    x = data.held_x.float() / 255
    flat, own = x.flatten(1), answer.private.tensor("heads.head")
    generic = flat @ answer.upload[:12].view(3, 4).T + answer.upload[12:]
    expected = generic + flat @ own[:12].view(3, 4).T + own[12:]
    assert torch.allclose(device.deployed(x), expected, atol=1e-6)
    assert answer.personal_accuracy == accuracy(
        device.deployed.module, device.preprocess, data.held_x, data.held_y
    )


def test_the_network_of_most_methods_is_the_federations_own(
    plain: Nets, examples: Data, trainer: Make
) -> None:
    net = plain()
    assert trainer("fedavg", net, examples(3)).deployed is net


# The device's data


def probing(probe: Callable[[TurnView, Tensor], Tensor]) -> Method:
    kind: type[Method] = type(
        "Probe", (Method,), {"name": "probe", "begin": lambda self, r, w: probe(r, w)}
    )
    return kind()


def test_outputs_are_an_evaluation_of_all_examples_and_leave_no_trace(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """More examples than one forward pass takes; dropout is off, running statistics stay."""
    data, net = examples(300, side=16), deep()
    other = deep(seed=5)
    other.module.eval()
    found: list[Output] = []

    def probe(r: TurnView, w: Tensor) -> Tensor:
        before = r.net.vector.clone()
        found.append(r.outputs(other.vector))
        assert torch.equal(r.net.vector, before)
        assert r.net.bound
        return w

    turn(trainer(probing(probe), net, data))
    expected = forward(other.module, data.x.float() / 255)
    assert torch.allclose(found[0].logits, expected.logits, atol=1e-6)
    assert torch.allclose(found[0].features, expected.features, atol=1e-6)
    assert not found[0].logits.requires_grad


def test_outputs_without_a_vector_are_those_of_the_model_in_training(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data, seen = examples(6), []

    def finish(self: Method, r: TurnView) -> Finish:
        seen.append(r.outputs().logits)
        return Finish()

    kind: type[Method] = type("Last", (Method,), {"name": "last", "finish": finish})
    answer = turn(trainer(kind(), plain(), data))
    x = data.x.flatten(1).float() / 255
    assert torch.allclose(seen[0], x @ answer.upload[:12].view(3, 4).T + answer.upload[12:])


@pytest.mark.parametrize("mixed", [False, True])
def test_a_teacher_is_the_fixed_model_and_disturbs_no_gradient(
    mixed: bool, deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """It is asked in the middle of a step, between the network's forward and its backward."""
    data, net, given = examples(10, side=16), deep(), deep(seed=5)
    given.module.eval()
    checked = []

    def objective(self: Method, r: TurnView, out: Output, batch: Batch) -> Objective:
        teacher = r.memo.setdefault("teacher", r.teacher(given.vector))
        batch = Batch(batch.x, batch.targets) if mixed else batch
        known = teacher(batch)
        direct = forward(given.module, batch.x)
        checked.append(
            torch.allclose(known.logits, direct.logits, atol=1e-5)
            and torch.allclose(known.features, direct.features, atol=1e-5)
            and not known.logits.requires_grad
        )
        return Objective()

    kind: type[Method] = type("Taught", (Method,), {"name": "taught", "objective": objective})
    answer = turn(trainer(kind(), net, data), epochs=2)
    assert len(checked) == 6
    assert all(checked)
    assert torch.equal(answer.upload, turn(trainer("fedavg", deep(), data), epochs=2).upload)


@dataclass(frozen=True)
class Mixed(Method):
    """As mixup: each input with another of its batch, both labels with their share."""

    name: ClassVar[str] = "mixed"
    share: float = 0.75

    def batch(self, r: TurnView, batch: Batch) -> Batch:
        other = torch.randperm(len(batch.x), generator=r.generator("partners"))
        ((y, _),) = batch.targets
        x = self.share * batch.x + (1 - self.share) * batch.x[other]
        return Batch(x, ((y, self.share), (y[other], 1 - self.share)))


@dataclass(frozen=True)
class Counting(Method):
    """As FedACD: mean probabilities by label, from the outputs of the training steps."""

    name: ClassVar[str] = "counting"
    scalars: ClassVar[frozenset[str]] = frozenset({"seen", "passes"})

    def observe(self, r: TurnView, out: Output, batch: Batch) -> None:
        assert not out.logits.requires_grad
        for y, share in batch.targets:
            r.memo["seen"] = r.memo.get("seen", 0.0) + share * len(y)

    def epoch_end(self, r: TurnView) -> None:
        r.memo["passes"] = r.memo.get("passes", 0) + 1
        assert r.memo["seen"] == pytest.approx(r.memo["passes"] * r.examples)

    def finish(self, r: TurnView) -> Finish:
        return Finish(scalars={"seen": r.memo["seen"], "passes": r.memo["passes"]})


def test_every_step_is_observed_and_every_pass_has_an_end(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Also the last pass, and with two labellings of each example."""
    for layers in ((Counting(),), (Mixed(), Counting())):
        answer = turn(trainer(Stack(layers), plain(), examples(10)), epochs=3)
        assert answer.scalars["seen"] == pytest.approx(30.0)
        assert answer.scalars["passes"] == 3.0


def test_each_labelling_counts_by_its_share(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """One batch of all examples: 0.75 CE(z, y) + 0.25 CE(z, y of the partner), z of the mixture."""
    data, w = examples(5), plain().vector
    observer, batches = observing()
    answer = turn(trainer(Stack((Mixed(), observer)), plain(), data), batch_size=5)
    (batch,) = batches
    assert batch.index is None
    w = w.double().requires_grad_()
    z = batch.x.flatten(1).double() @ w[:12].view(3, 4).T + w[12:]
    loss = sum(share * F.cross_entropy(z, y) for y, share in batch.targets)
    assert isinstance(loss, Tensor)
    (g,) = torch.autograd.grad(loss, w)
    assert answer.scalars["loss"] == pytest.approx(float(loss.detach()))
    assert close(answer.upload, w.detach() - LR * g)


def test_randomness_of_a_layer_does_not_change_the_batches(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    order: dict[bool, list[Tensor]] = {True: [], False: []}

    def drawing(draws: bool) -> Method:
        def batch(self: Method, r: TurnView, batch: Batch) -> Batch:
            assert batch.index is not None
            order[draws].append(batch.index)
            if draws:
                torch.rand(7, generator=r.generator("own"))
            return batch

        kind: type[Method] = type("Drawing", (Method,), {"name": "drawing", "batch": batch})
        return kind()

    for draws in order:
        turn(trainer(drawing(draws), plain(), examples(10)), epochs=2)
    assert len(order[True]) == 6
    assert all(torch.equal(a, b) for a, b in zip(order[True], order[False], strict=True))


# A start of its own, and a step of its own


@dataclass(frozen=True)
class Warm(Method):
    """As ALA: before training, improve something by the loss of the whole composition."""

    name: ClassVar[str] = "warm"

    def begin(self, r: TurnView, w: Tensor) -> Tensor:
        batch = r.batch(torch.arange(r.examples))
        w = w.clone().requires_grad_()
        z = batch.x.flatten(1) @ w[:12].view(3, 4).T + w[12:]
        (g,) = torch.autograd.grad(r.loss(Output(z, z), batch), w)
        return w.detach() - g


def test_a_start_may_use_the_loss_of_all_layers(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data, w = examples(6), plain().vector
    scale = torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64)

    def objective(self: Method, r: TurnView, out: Output, batch: Batch) -> Objective:
        return Objective(scale=scale.float())

    kind: type[Method] = type("Scaled", (Method,), {"name": "scaled", "objective": objective})
    answer = turn(trainer(Stack((kind(), Warm())), plain(), data), batch_size=6)

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scale * z, y)

    x, v = data.x.flatten(1).double() / 255, w.double().requires_grad_()
    (g,) = torch.autograd.grad(loss(x @ v[:12].view(3, 4).T + v[12:], data.y), v)
    assert close(answer.upload, descend(v.detach() - g, data, 1, loss))


def test_starts_wrap_each_other_in_order(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    starts: list[Tensor] = []

    def adding(name: str, value: float) -> Method:
        hooks = {"name": name, "begin": lambda self, r, w: value * (w + value)}
        kind: type[Method] = type(name, (Method,), hooks)
        return kind()

    def finish(self: Method, r: TurnView) -> Finish:
        starts.append(r.start)
        return Finish()

    last: type[Method] = type("Last", (Method,), {"name": "last", "finish": finish})
    w = plain().vector
    turn(trainer(Stack((adding("a", 2.0), adding("b", 3.0), last())), plain(), examples(3)))
    assert torch.allclose(starts[0], 3 * (2 * (w + 2) + 3))


@dataclass(frozen=True)
class Ahead(Method):
    """As first-order Per-FedAvg: the gradient is taken one step ahead of where it is used."""

    name: ClassVar[str] = "ahead"

    def advance(self, r: TurnView, step: Step) -> Tensor | float:
        here = r.model.clone()
        step.gradient(step.batch())
        step.apply(lr=0.5)
        loss = step.gradient(step.batch())
        r.net.load(here)
        step.apply()
        return loss


def test_a_method_may_make_its_own_local_step(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """w' = w - 0.5 g(w); w ← w - 0.1 g(w'); every batch is the whole data, momentum is off."""
    data = examples(6)
    x, w = data.x.flatten(1).double() / 255, plain().vector.double()

    def gradient(w: Tensor) -> Tensor:
        w = w.detach().requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(x @ w[:12].view(3, 4).T + w[12:], data.y), w)
        return g

    for _ in range(3):
        w = w - LR * gradient(w - 0.5 * gradient(w))
    device = trainer(Ahead(), plain(), data)
    answer = turn(device, epochs=3, batch_size=6, momentum=0.0)
    assert close(answer.upload, w)
    assert answer.scalars["steps"] == 3


def test_an_upload_may_leave_a_part_at_home(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """As FedRep: what is the device's own is sent as it came."""

    def finish(self: Method, r: TurnView) -> Finish:
        mine = r.layout.mask(r.layout.inside("head.bias")).bool()
        return Finish(upload=torch.where(mine, r.received, r.model))

    kind: type[Method] = type("Part", (Method,), {"name": "part", "finish": finish})
    w = plain().vector.clone()
    answer = turn(trainer(kind(), plain(), examples(6)))
    assert torch.equal(answer.upload[12:], w[12:])
    assert (answer.upload[:12] != w[:12]).any()
    assert (answer.personal[12:] != w[12:]).any()
