"""SCAFFOLD: its step by hand, its rounds against a plain Algorithm 1, ScaRS and ScaMAP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fededge.errors import MethodError, WireError
from fededge.federated.aggregation import aggregate
from fededge.flat import FlatModel, as_numpy, as_tensors
from fededge.method.base import Merged
from fededge.methods import Hyper, Private, method
from fededge.methods.scaffold import Scaffold
from fededge.training import Examples
from tests.loops import LR, Loss, close, cross_entropy, curved, descend
from tests.merging import merged_turns, numbers
from tests.training_fixtures import Data, Make, Nets, Take

TRAINED = curved().layout.trainable.bool()


@pytest.mark.parametrize(("c_scale", "c"), [("all", (0.1, -0.325)), ("sampled", (0.0, -0.25))])
def test_the_coordinators_step_by_hand(c_scale: str, c: tuple[float, float]) -> None:
    """x = (1, 2), c = (0.2, -0.4), four devices of which two send (0, 2) and (3, 4).

    Their 1/(K η) are 0.5 and 0.25. The mean change is ((-1, 0) + (2, 2))/2 = (0.5, 1): with η_g
    of 0.5 the next x is (1.25, 2.5), whatever their numbers of examples.
    Δc_1 = 0.5 · (1, 0) - c = (0.3, 0.4) and Δc_2 = 0.25 · (-2, -2) - c = (-0.7, -0.1): their sum
    (-0.4, 0.3) moves c by a quarter of it, or by a half if the sampled two count as all.
    """
    layout = FlatModel(torch.nn.Linear(2, 1, bias=False)).layout
    reports = {"a": {"examples": 5.0, "slope": 0.5}, "b": {"examples": 50.0, "slope": 0.25}}
    uploads = {"a": numbers(0, 2), "b": numbers(3, 4)}
    x, state = aggregate(
        method(f"scaffold(server_lr=0.5, c_scale={c_scale})"),
        numbers(1, 2),
        {"scaffold.c": numbers(0.2, -0.4)},
        reports,
        uploads.__getitem__,
        devices=4,
        layout=layout,
    )
    assert x.tolist() == [1.25, 2.5]
    assert state["scaffold.c"].tolist() == pytest.approx(c, abs=1e-7)


def constant(value: Tensor, _: Tensor) -> Tensor:
    return value


@dataclass
class Reference:
    """Algorithm 1 in double precision; devices send Δy and Δc."""

    net: FlatModel
    data: Mapping[str, Examples]
    x: Tensor
    c: Tensor
    momentum: float
    server_lr: float = 1.0
    loss: Loss = cross_entropy
    own: dict[str, Tensor] = field(default_factory=dict)

    def round(self, sampled: list[str], steps: int, spread: int) -> dict[str, Tensor]:
        """One round; returns what each sampled device's model was."""
        buffer = a = 0.0
        for _ in range(steps):
            buffer = self.momentum * buffer + 1
            a += buffer
        dys, dcs, models = [], [], {}
        for device in sampled:
            c_i = self.own.get(device, torch.zeros_like(self.x))
            drift = self.c - c_i
            y = descend(
                self.net,
                self.x,
                self.data[device],
                steps,
                self.loss,
                partial(constant, drift),
                self.momentum,
            )
            new = c_i - self.c + (self.x - y) / (a * LR)
            dys.append(y - self.x)
            dcs.append(new - c_i)
            self.own[device], models[device] = new, y
        dx = torch.stack(dys).mean(0)
        # Running statistics are the mean of the devices', whatever the length of the step.
        self.x = self.x + torch.where(TRAINED, self.server_lr * dx, dx)
        self.c = self.c + torch.stack(dcs).sum(0) / spread
        return models


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("text", "restricts", "spread"),
    [
        ("scaffold", False, 3),
        ("scaffold(server_lr=0.7, c_scale=sampled)", False, 2),
        ("scaffold+fedrs(alpha=0.6)", True, 3),
    ],
)
def test_rounds_are_those_of_algorithm_1(
    text: str,
    restricts: bool,
    spread: int,
    momentum: float,
    examples: Data,
    trainer: Make,
    turn: Take,
) -> None:
    """Two of three devices a round. The coordinator sees models and 1/(K η) only; its c is the one
    of the algorithm, and with c_scale=all it is the mean of every device's c_i.
    """

    def restricted(z: Tensor, h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.tensor([1.0, 1.0, 0.6], dtype=torch.float64) * z, y)

    stack, net = method(text), curved()
    data = {device: examples(9, seed=seed) for seed, device in enumerate("abc")}
    w, state = net.vector.clone(), stack.initial(net.layout)
    private: dict[str, Private] = {}
    plain = Reference(net, data, w.double(), torch.zeros_like(w).double(), momentum)
    plain.server_lr = 0.7 if "0.7" in text else 1.0
    plain.loss = restricted if restricts else cross_entropy
    for number, sampled in enumerate((["a", "b"], ["b", "c"], ["a", "c"], ["a", "b"])):
        answers = {
            device: turn(
                trainer(text, curved(), data[device], device),
                private.get(device),
                received=w,
                sent=as_tensors(stack.send(state)),
                number=number,
                epochs=4,
                batch_size=9,
                momentum=momentum,
                weight_decay=0.01,
            )
            for device in sampled
        }
        private |= {device: answer.private for device, answer in answers.items()}
        w, state = merged_turns(stack, w, state, answers, devices=3, layout=net.layout)
        c = as_tensors(state)["scaffold.c"]
        models = plain.round(sampled, 4, spread)
        assert close(w, plain.x, atol=1e-4)
        assert close(c, plain.c, atol=2e-4)
        for device in sampled:
            assert close(private[device].tensor("scaffold.c_i"), plain.own[device], atol=2e-4)
            assert close(answers[device].upload, models[device], atol=1e-4)
    if spread == 3:
        mean = torch.stack([p.tensor("scaffold.c_i") for p in private.values()]).mean(0)
        assert close(c, mean, atol=1e-5)
    assert float(c[TRAINED].abs().max()) > 1e-3


def test_one_device_with_full_batches_is_gradient_descent(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """c and c_i are equal after every round, so that nothing is corrected."""
    data, net, stack = examples(6), plain(), method("scaffold")
    w, state, private = net.vector.clone(), stack.initial(net.layout), Private()
    start = w.clone()
    for number in range(3):
        answer = turn(
            trainer(stack, net, data),
            private,
            received=w,
            sent=as_tensors(stack.send(state)),
            number=number,
            epochs=4,
            batch_size=6,
            momentum=0.0,
            weight_decay=0.01,
        )
        private = answer.private
        w, state = merged_turns(stack, w, state, {"d1": answer}, devices=1, layout=net.layout)
        c = as_tensors(state)["scaffold.c"]
        assert close(c, private.tensor("scaffold.c_i"), atol=1e-6)
    assert close(w, descend(net, start, data, 12, momentum=0.0), atol=1e-5)


def test_drift_is_gone_where_averaging_keeps_it(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Three devices of one class each, and a convex loss: SCAFFOLD comes to rest where the mean of
    their losses does; FedAvg, whose devices have as many examples each, beside it.
    """
    data = {name: examples(6, seed=label) for label, name in enumerate("abc")}
    for label, own in enumerate(data.values()):
        own.y[:] = label

    def slope(w: Tensor) -> float:
        """The length of the mean loss's gradient."""
        w = w.double().requires_grad_()
        weight, bias = w[:12].reshape(3, 4), w[12:]
        losses = [
            F.cross_entropy(own.x.flatten(1).double() / 255 @ weight.T + bias, own.y)
            for own in data.values()
        ]
        loss = torch.stack(losses).mean() + 0.05 * w.square().sum() / 2
        return float(torch.autograd.grad(loss, w)[0].norm())

    def rest(text: str) -> Tensor:
        stack, net = method(text), plain()
        w, state = net.vector.clone(), stack.initial(net.layout)
        private: dict[str, Private] = {}
        for number in range(100):
            answers = {
                device: turn(
                    trainer(stack, net, own, device),
                    private.get(device),
                    received=w,
                    sent=as_tensors(stack.send(state)),
                    number=number,
                    epochs=5,
                    batch_size=6,
                    lr=0.3,
                    momentum=0.0,
                    weight_decay=0.05,
                )
                for device, own in data.items()
            }
            private = {device: answer.private for device, answer in answers.items()}
            w, state = merged_turns(stack, w, state, answers, devices=3, layout=net.layout)
        return w

    assert slope(rest("scaffold")) < 1e-4
    assert slope(rest("fedavg")) > 1e-2


def test_the_control_variate_waits_for_the_coordinator(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    device, zero = trainer("scaffold", plain(), examples(6)), torch.zeros(15)
    sent = {"scaffold.c": torch.ones(15)}
    before = Private({"scaffold.c_i": zero})
    after = turn(device, before, sent=sent).private
    kept = device.method.kept_at_once(before, after)
    assert torch.equal(kept.tensor("scaffold.c_i"), zero)
    assert not torch.equal(after.tensor("scaffold.c_i"), zero)


def test_a_device_sends_its_model_and_a_number(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """8 examples in batches of 4, twice: K = 4 steps of 0.1."""
    stack = method("scaffold")
    sent = {"scaffold.c": torch.zeros(15)}
    answer = turn(trainer(stack, plain(), examples(8)), sent=sent, epochs=2, momentum=0.0)
    assert stack.sends == ("scaffold.c",)
    assert stack.scalars - method("fedavg").scalars == {"slope"}
    assert answer.scalars["slope"] == pytest.approx(1 / (4 * 0.1))


def test_every_phase_gathers_a_momentum_of_its_own(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """Two steps that tune and one that trains: K = (1 + 1.9) + 1, not 1 + 1.9 + 2.71."""
    device = trainer("scaffold+finetune(epochs=2)", plain(), examples(4))
    answer = turn(device, sent={"scaffold.c": torch.zeros(15)}, batch_size=4)
    assert answer.scalars["steps"] == 3
    assert answer.scalars["slope"] == pytest.approx(1 / (3.9 * 0.1))


@pytest.mark.parametrize(
    ("text", "scalars", "shares"),
    [
        ("scaffold", {}, (0.5, 0.5)),
        ("scaffold+fedrs", {}, (0.5, 0.5)),
        ("fedprox+scaffold", {}, (0.5, 0.5)),
        ("scaffold+map(agg=n)", {}, (0.25, 0.75)),
        ("fedacd+scaffold", {"v_m": (1.0, 0.6)}, (0.625, 0.375)),
    ],
)
def test_updates_count_the_same_unless_another_layer_decides(
    text: str, scalars: Mapping[str, tuple[float, float]], shares: tuple[float, float]
) -> None:
    """From 0, devices of 1 and 3 examples send 4 and 8: the next model is their mean by shares."""
    layout = FlatModel(torch.nn.Linear(1, 1, bias=False)).layout
    reports = {
        name: {"examples": n, "slope": 1.0, **{key: v[place] for key, v in scalars.items()}}
        for place, (name, n) in enumerate((("a", 1.0), ("b", 3.0)))
    }
    uploads = {"a": numbers(4), "b": numbers(8)}
    zero = numbers(0)
    x, state = aggregate(
        method(text), zero, {"scaffold.c": zero}, reports, uploads.__getitem__, 2, layout
    )
    assert x.item() == pytest.approx(4 * shares[0] + 8 * shares[1])
    assert state["scaffold.c"].item() == pytest.approx(-(4 + 8) / 2)


# ScaMAP


@pytest.mark.parametrize("text", ["scaffold+map(alpha=0.6)", "scaffold@first+map(alpha=0.6)"])
def test_sca_map_corrects_the_first_stage_only(
    text: str, examples: Data, trainer: Make, turn: Take
) -> None:
    """Five steps: two with c - c_i, sent, K = 2; then three without it, from the snapshot."""
    data, net = examples(9), curved()
    draw = torch.Generator().manual_seed(4)
    c, c_i = 0.1 * torch.randn(2, net.layout.size, generator=draw)
    w = net.vector.clone()
    answer = turn(
        trainer(text, net, data),
        Private({"scaffold.c_i": c_i}),
        sent={"scaffold.c": c},
        epochs=5,
        batch_size=9,
        weight_decay=0.01,
    )

    def restricted(z: Tensor, h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.tensor([1.0, 1.0, 0.6], dtype=torch.float64) * z, y)

    sent = descend(net, w, data, 2, restricted, partial(constant, (c - c_i).double()))
    assert close(answer.upload, sent)
    assert close(answer.personal, descend(net, sent, data, 3))
    a = 1 + (1 + 0.9)
    assert answer.scalars["slope"] == pytest.approx(1 / (a * 0.1))
    expected = c_i - c + (w - sent) / (a * 0.1)
    assert close(answer.private.tensor("scaffold.c_i"), expected, atol=2e-4)


def test_sca_map_sends_what_sca_rs_does_with_half_the_steps_bit_for_bit(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data, size = examples(21, side=16), deep().layout.size
    private = Private({"scaffold.c_i": torch.full((size,), 0.01)})
    answers = [
        turn(trainer(text, deep(), data), private, sent={"scaffold.c": torch.zeros(size)}, epochs=e)
        for text, e in (("scaffold+map", 4), ("scaffold@first+map", 4), ("scaffold+fedrs", 2))
    ]
    for answer in answers[:2]:
        assert torch.equal(answer.upload, answers[2].upload)
        assert answer.scalars["slope"] == answers[2].scalars["slope"]
        assert torch.equal(
            answer.private.tensor("scaffold.c_i"), answers[2].private.tensor("scaffold.c_i")
        )


def test_a_device_that_took_no_step_changes_no_control_variate(
    examples: Data, trainer: Make, turn: Take
) -> None:
    """One step a turn leaves MAP's first stage none: c_i stays, and c too."""
    net, stack = curved(), method("scaffold+map")
    c = torch.ones(net.layout.size)
    c_i = torch.full_like(c, 2.0)
    answer = turn(
        trainer(stack, net, examples(9)),
        Private({"scaffold.c_i": c_i}),
        sent={"scaffold.c": c},
        batch_size=9,
    )
    assert answer.scalars["slope"] == 0
    assert torch.equal(answer.private.tensor("scaffold.c_i"), c_i)
    kept = as_numpy(c)
    merged = Merged(kept, {"d1": answer.scalars}, 4, net.layout, {"g": np.zeros_like(kept)})
    _, state = Scaffold().step(kept, merged, {"c": kept})
    assert state["c"].tolist() == c.tolist()


# Refusals


def test_a_report_that_no_device_makes_is_refused() -> None:
    """K is at least the two steps, so that 1/(K η) is at most 1/(2 · 0.1)."""
    honest = {"examples": 3.0, "steps": 2.0, "loss": 1.0, "slope": 5.0}
    stack = method("scaffold")
    hyper = Hyper(epochs=2, batch_size=3, lr=0.1)
    stack.check(honest, hyper)
    for slope in (-1.0, 5.01, 1e300, float("inf"), float("nan")):
        with pytest.raises(WireError, match=r"report's slope must be between 0 and 5\.0, got "):
            stack.check({**honest, "slope": slope}, hyper)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("scaffold(server_lr=0)", r"scaffold\(.*: server_lr must be above 0"),
        (
            "scaffold(c_scale=none)",
            r"scaffold\(c_scale=…\) must be one of all, sampled; got 'none'",
        ),
    ],
)
def test_a_bad_option_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(MethodError, match=f"^{sentence}$"):
        method(text)
