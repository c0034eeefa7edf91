"""The owners of hooks in a stack of layers, and the compositions and results it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fededge.errors import MethodError, WireError
from fededge.flat import FlatModel, Layout, Vector
from fededge.method.base import (
    Examples,
    Finish,
    Follows,
    Merged,
    Method,
    Phase,
    Range,
    State,
    Step,
    TurnView,
)
from fededge.method.stack import Stack
from fededge.method.turn import Hyper, Turn
from fededge.methods import Private, method
from fededge.methods.fedavg import FedAvg
from tests.merging import numbers

REPORT = {"examples": 8.0, "steps": 2.0, "loss": 1.0, "personal_accuracy": 0.5}
HYPER = Hyper(epochs=2, batch_size=4, lr=0.5)
COUNT = "a whole number between 0 and 9007199254740992"
FOUR = "a whole number between 0 and 4"


def layer(name: str, **hooks: object) -> Method:
    """A method that fills in these hooks."""
    kind: type[Method] = type(name, (Method,), {"name": name, **hooks})
    return kind()


def _phases(self: Method, r: TurnView) -> Sequence[Phase]:
    return (Phase(),)


def _advance(self: Method, r: TurnView, step: Step) -> float:
    return 0.0


def _personal(self: Method, r: TurnView) -> Tensor:
    return r.model


def _network(self: Method, net: nn.Module, data: Examples) -> nn.Module:
    return net


def _weight(self: Method, scalars: Mapping[str, float]) -> float:
    return 1.0


def _sums(self: Method, scalars: Mapping[str, float]) -> Mapping[str, float]:
    return {"all": 1.0}


def _step(self: Method, w: Tensor, merged: Merged, state: State) -> tuple[Tensor, State]:
    return w, state


@pytest.mark.parametrize(
    ("one", "two", "what"),
    [
        ({"phases": _phases}, {"phases": _phases}, "the phases of the local training"),
        ({"advance": _advance}, {"advance": _advance}, "how a local step is made"),
        ({"personal": _personal}, {"personal": _personal}, "the personal model"),
        ({"personal": _personal}, {"network": _network}, "the personal model"),
        ({"weight": _weight}, {"weight": _weight}, "the weight of an update"),
        ({"step": _step}, {"step": _step}, "the step to the next global model"),
        ({"step": _step}, {"sums": _sums}, "the step to the next global model"),
    ],
)
def test_two_owners_of_a_hook_are_refused_by_name(
    one: dict[str, object], two: dict[str, object], what: str
) -> None:
    layers = (layer("anna", **one), FedAvg(), layer("bert", **two))
    with pytest.raises(MethodError) as caught:
        Stack(layers)
    assert str(caught.value) == f"anna and bert cannot be combined: each decides {what}"


@pytest.mark.parametrize(
    ("text", "part", "whole"),
    [("fedprox+ala+fedala", "ala", "fedala"), ("fedrod+balanced", "balanced", "fedrod")],
)
def test_a_method_is_not_combined_with_a_part_of_itself(text: str, part: str, whole: str) -> None:
    with pytest.raises(MethodError) as caught:
        method(text)
    said = f"{part} and {whole} cannot be combined: {whole} already includes {part}"
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "scaffold@second+map",
            "scaffold corrects the uploaded model, but map's phase 'second' does not affect it",
        ),
        (
            "ditto+scaffold@personal",
            "scaffold corrects the uploaded model, but ditto's phase 'personal' does not affect it",
        ),
        (
            "map+ala@first",
            "ala does nothing during a phase and cannot be limited to one: leave @first out",
        ),
        (
            "fedadam@train",
            "fedadam does nothing during a phase and cannot be limited to one: leave @train out",
        ),
        (
            "finetune@tune+fedprox",
            "finetune does nothing during a phase and cannot be limited to one: leave @tune out",
        ),
        (
            "ditto@global",
            "ditto defines the phases, and only the other layers can be limited: leave @global out",
        ),
    ],
)
def test_a_limit_without_an_effect_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(MethodError) as caught:
        method(text)
    assert str(caught.value).endswith(f"': {sentence}")


@pytest.mark.parametrize(
    "text",
    ["scaffold@first+map", "fedprox@second+map", "fedrs@personal+ditto", "fedprox-c@train"],
)
def test_a_limit_with_an_effect_is_accepted(text: str) -> None:
    assert method(text).limits


def test_one_owner_may_stand_anywhere_and_fill_in_both_hooks() -> None:
    owner = layer("owner", weight=_weight, step=_step, sums=_sums)
    for layers in ((owner, FedAvg()), (FedAvg(), owner)):
        assert Stack(layers).weight(REPORT) == 1.0
        assert Stack(layers).sums(REPORT) == {"all": 1.0}


def test_a_scalar_has_one_reporter() -> None:
    scored = [layer(name, scalars=frozenset({"score"})) for name in ("anna", "bert")]
    with pytest.raises(MethodError, match=r"anna\+bert': two layers report a scalar 'score'"):
        Stack(tuple(scored))
    with pytest.raises(MethodError, match="two layers report a scalar 'loss'"):
        Stack((layer("anna", scalars=frozenset({"loss"})),))
    assert Stack((scored[0], FedAvg())).scalars == REPORT.keys() | {"score"}


# Results of a turn


def a_turn(stack: Stack, private: Private | None = None) -> Turn:
    net = FlatModel(nn.Linear(1, 1))
    empty = torch.empty(0, 1), torch.empty(0, dtype=torch.int64)
    return Turn(
        seed=0,
        number=0,
        device="d1",
        hyper=Hyper(),
        data=Examples(*empty, *empty, 2),
        preprocess=nn.Identity(),
        net=net,
        received=net.vector.clone(),
        sent={"anna.c": torch.ones(2), "bert.c": torch.zeros(2)},
        private=private or Private(),
        loss=stack.loss,
    )


def ends_with(finish: Finish, **kind: object) -> Stack:
    return Stack((layer("anna", finish=lambda self, r: finish, **kind),))


@pytest.mark.parametrize(
    ("finish", "name"),
    [(Finish(private={"c": 1.0}), "c"), (Finish(scalars={"score": 1.0}), "score")],
)
def test_a_result_that_a_layer_does_not_declare_is_refused(finish: Finish, name: str) -> None:
    stack = ends_with(finish)
    with pytest.raises(MethodError, match=rf"^anna does not declare \['{name}'\]$"):
        stack.finish(a_turn(stack))


def test_private_pieces_are_kept_under_the_layers_name() -> None:
    keeps: dict[str, Follows] = {"last": "training"}
    stack = Stack(
        (layer("anna", keeps=keeps, finish=lambda self, r: Finish(private={"last": r.model})),)
    )
    turn = a_turn(stack, Private({"other.last": 3.0}))
    private = Private(stack.finish(turn).private)
    assert list(private) == ["other.last", "anna.last"]
    assert torch.equal(private.tensor("anna.last"), turn.net.vector)


def test_a_layer_sees_its_own_state_and_vectors_only() -> None:
    private = Private({"anna.v": 1.0, "bert.v": 2.0})
    turn = a_turn(Stack((FedAvg(),)), private)
    anna, bert = TurnView(turn, "anna"), TurnView(turn, "bert")
    assert (anna.private["v"], bert.private["v"]) == (1.0, 2.0)
    assert [r.sent["c"].tolist() for r in (anna, bert)] == [[1.0, 1.0], [0.0, 0.0]]
    anna.memo["note"] = 1
    assert (TurnView(turn, "anna").memo, bert.memo) == ({"note": 1}, {})
    assert anna.generator("x").initial_seed() != bert.generator("x").initial_seed()
    assert anna.generator("x") is TurnView(turn, "anna").generator("x")


def test_state_that_follows_the_update_waits_for_the_coordinator() -> None:
    keeps: dict[str, Follows] = {"now": "training", "later": "update", "first": "update"}
    stack = Stack((layer("anna", keeps=keeps),))
    before = Private({"anna.now": 1.0, "anna.later": 1.0, "gone.piece": 1.0})
    after = Private({"anna.now": 2.0, "anna.later": 2.0, "anna.first": 2.0, "gone.piece": 1.0})
    kept = stack.kept_at_once(before, after)
    assert dict(kept) == {"anna.now": 2.0, "anna.later": 1.0, "gone.piece": 1.0}


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ((Phase("one"),), "anna: `phases` and `phase_names` differ"),
        (
            (Phase("a", 0.5), Phase("b", 0.4)),
            "anna: the shares of its phases must sum to 1, got 0.9",
        ),
        (
            (Phase("a"), Phase("b", epochs=1, aside=True)),
            "anna: the phases aside and `aside_names` differ",
        ),
        (
            (Phase("a"), Phase("b", epochs=1, start=torch.ones(2))),
            "anna: phase 'b' has a start but is not aside",
        ),
    ],
)
def test_phases_must_add_up(phases: tuple[Phase, ...], words: str) -> None:
    stack = Stack((layer("anna", phases=lambda self, r: phases, phase_names=("a", "b")),))
    with pytest.raises(MethodError, match=f"^{words}$"):
        stack.phases(a_turn(stack))


# The coordinator


@pytest.mark.parametrize(
    ("scalars", "words"),
    [
        ({"steps": 1.0, "loss": 1.0}, "the report lacks examples"),
        ({**REPORT, "examples": -1.0}, f"the report's examples must be {COUNT}, got -1.0"),
        ({**REPORT, "examples": 0.5}, f"the report's examples must be {COUNT}, got 0.5"),
        ({**REPORT, "examples": float("nan")}, f"the report's examples must be {COUNT}, got nan"),
        ({**REPORT, "examples": float("inf")}, f"the report's examples must be {COUNT}, got inf"),
        ({**REPORT, "steps": 2.0**54}, f"the report's steps must be {FOUR}, got 1.80143985\\S+"),
        ({**REPORT, "steps": 5.0}, f"the report's steps must be {FOUR}, got 5.0"),
        ({**REPORT, "steps": 1.5}, f"the report's steps must be {FOUR}, got 1.5"),
        ({**REPORT, "examples": 0.0}, r"the report's steps must be .* between 0 and 0, got 2.0"),
        ({**REPORT, "loss": float("-inf")}, r"the report's loss must be between -3.4\S+ and .*"),
        (
            {**REPORT, "personal_accuracy": 1.1},
            "the report's personal_accuracy must be between 0 and 1, got 1.1",
        ),
        ({**REPORT, "spy": 1.0, "a": 2.0}, "the method has no scalars a, spy"),
    ],
)
def test_a_report_that_no_honest_device_makes_is_refused(
    scalars: dict[str, float], words: str
) -> None:
    """Two passes over 8 examples in batches of 4 are at most 4 steps."""
    with pytest.raises(WireError, match=f"^{words}$"):
        method("fedavg").check(scalars, HYPER)


def test_the_steps_of_extra_phases_are_accepted() -> None:
    """Ten passes of fine-tuning before two others: 24 steps."""
    stack = method("finetune(epochs=10)")
    stack.check({**REPORT, "steps": 24.0}, HYPER)
    with pytest.raises(WireError, match="steps must be a whole number between 0 and 24, got 25"):
        stack.check({**REPORT, "steps": 25.0}, HYPER)


def test_phases_that_take_more_passes_than_declared_are_one_sentence() -> None:
    phases = (Phase("a", epochs=3), Phase("b"), Phase("c", epochs=9, aside=True))
    hooks = {
        "phases": lambda self, r: phases,
        "phase_names": ("a", "b", "c"),
        "aside_names": ("c",),
    }
    stack = Stack((layer("anna", **hooks),))
    with pytest.raises(MethodError, match="anna: its phases take 4 epochs, but `passes` allows 1"):
        stack.phases(a_turn(stack))
    stack = Stack((layer("anna", **hooks, passes=lambda self, hyper: 3 + hyper.epochs),))
    assert stack.phases(a_turn(stack)) == phases


# Ranges of a user's own scalars


def ranging(ranges: object) -> Stack:
    return Stack((layer("anna", scalars=frozenset({"moved"}), ranges=ranges),))


def test_a_scalar_without_a_range_has_the_stated_one() -> None:
    stack = Stack((layer("anna", scalars=frozenset({"moved"})),))
    assert stack.ranges(HYPER, 8, 2)["moved"] == Range(-1e9, 1e9)
    stack.check({**REPORT, "moved": -1e9}, HYPER)
    with pytest.raises(WireError, match=r"moved must be between -1000000000\.0 and 1000000000\.0"):
        stack.check({**REPORT, "moved": 1.1e9}, HYPER)


def test_a_range_may_follow_from_the_training_and_the_counts() -> None:
    def ranges(self: Method, hyper: Hyper, examples: int, steps: int) -> dict[str, Range]:
        return {"moved": Range(0, hyper.lr * steps * examples)}

    stack = ranging(ranges)
    assert stack.ranges(HYPER, 8, 2).keys() == stack.scalars
    stack.check({**REPORT, "moved": 8.0}, HYPER)
    with pytest.raises(
        WireError, match=r"^the report's moved must be between 0 and 8\.0, got 9\.0$"
    ):
        stack.check({**REPORT, "moved": 9.0}, HYPER)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        (lambda *_: {"moved": (0, 1)}, r"anna: the range of 'moved' must be a Range, got \(0, 1\)"),
        (lambda *_: {"other": Range(0, 1)}, "anna: `ranges` names 'other', which is not in its"),
        (lambda *_: {"moved": Range(1, 0)}, "a Range from 1 to 0 is empty"),
        (lambda *_: None, r"anna: ranges failed \(TypeError: "),
        (lambda *_: 1 / 0, r"anna: ranges failed \(ZeroDivisionError: division by zero\)"),
    ],
)
def test_a_bug_in_ranges_is_one_sentence(ranges: object, words: str) -> None:
    with pytest.raises(MethodError, match=f"^{words}"):
        ranging(ranges).ranges(HYPER, 8, 2)
    with pytest.raises(WireError, match=words):
        ranging(ranges).check({**REPORT, "moved": 0.5}, HYPER)


def test_a_device_is_told_first_that_its_scalar_is_out_of_range() -> None:
    """So that a simulation shows it too."""
    told = layer(
        "anna",
        scalars=frozenset({"moved"}),
        ranges=lambda *_: {"moved": Range(0, 1)},
        finish=lambda self, r: Finish(scalars={"moved": 1.5}),
    )
    with pytest.raises(MethodError, match=r"^anna: its 'moved' must be between 0 and 1, got 1\.5"):
        Stack((told,)).finish(a_turn(Stack((told,))))


def test_reports_that_give_no_weight_are_refused() -> None:
    stack = Stack((layer("anna", weight=lambda self, s: 1 / s["loss"]),))
    stack.check(REPORT, HYPER)
    for loss, words in ((0.0, "division by zero"), (-1.0, "weight must be between 0 .* got -1.0")):
        with pytest.raises(WireError, match=words):
            stack.check({**REPORT, "loss": loss}, HYPER)
    summing = Stack((layer("bert", sums=lambda self, s: {"all": s["loss"] * 1e308}),))
    with pytest.raises(WireError, match="an update's factors must be finite"):
        summing.check({**REPORT, "loss": 1e9}, HYPER)


def test_a_device_without_held_out_examples_reports_no_accuracy() -> None:
    report = {name: value for name, value in REPORT.items() if name != "personal_accuracy"}
    method("fedavg").check(report, HYPER)


def test_a_device_without_examples_counts_nothing_whatever_the_method_says() -> None:
    assert Stack((layer("anna", weight=_weight),)).weight({**REPORT, "examples": 0.0}) == 0.0


def test_each_layers_memory_and_vectors_have_its_name() -> None:
    hooks = {
        "sends": ("c",),
        "initial": lambda self, layout: {"c": np.zeros(layout.size, np.float32), "h": numbers(1)},
        "send": lambda self, state: {"c": state["c"]},
    }
    stack = Stack((layer("anna", **hooks), layer("bert", **hooks), FedAvg()))
    state = stack.initial(Layout.of(nn.Linear(1, 1)))
    assert list(state) == ["anna.c", "anna.h", "bert.c", "bert.h"]
    assert stack.sends == ("anna.c", "bert.c") == tuple(stack.send(state))


def test_a_layer_must_send_the_vectors_that_it_declares() -> None:
    stack = Stack((layer("anna", sends=("c",)),))
    with pytest.raises(
        MethodError, match=r"anna: `send` returns \[\], but `sends` declares \('c',\)"
    ):
        stack.send({})


@dataclass(frozen=True)
class Doubled(Method):
    """Steps twice as far as the mean, and counts the rounds in its state."""

    name: ClassVar[str] = "doubled"

    def initial(self, layout: Layout) -> State:
        return {"rounds": np.zeros(1, np.float32)}

    def step(self, w: Vector, merged: Merged, state: State) -> tuple[Vector, State]:
        return w + 2 * (merged.mean - w), {"rounds": state["rounds"] + 1}


def test_a_step_moves_parameters_and_running_statistics_take_the_mean() -> None:
    layout = Layout.of(nn.BatchNorm1d(1))
    stack = Stack((FedAvg(), Doubled()))
    state = {**stack.initial(layout), "other.kept": numbers(1)}
    merged = Merged(numbers(1, 1, 1, 1), {}, 1, layout)
    model, after = stack.step(numbers(0, 0, 0, 0), merged, state)
    assert model.tolist() == [2.0, 2.0, 1.0, 1.0]
    assert (after["doubled.rounds"].item(), after["other.kept"].item()) == (1.0, 1.0)
    assert state["doubled.rounds"].item() == 0.0


def _raise(*_: object) -> float:
    raise KeyError("mood")


@pytest.mark.parametrize("hook", ["weight", "sums"])
@pytest.mark.parametrize("given", [_raise, lambda *_: None, lambda *_: {"g": "much"}])
def test_a_report_that_a_method_of_ones_own_cannot_weigh_is_refused(
    hook: str, given: object
) -> None:
    """Its hooks may raise or give anything: one device's numbers must not end a coordinator."""
    stack = Stack((layer("mine", **{hook: given}),))
    with pytest.raises(WireError, match=r"the report's scalars are invalid \(mine"):
        stack.check(REPORT, HYPER)


def test_an_exception_of_a_coordinator_half_becomes_one_sentence() -> None:
    stack = Stack((layer("mine", send=_raise, sends=("c",), step=_raise),))
    with pytest.raises(MethodError, match=r"^mine: send failed \(KeyError: 'mood'\)$"):
        stack.send({})
    with pytest.raises(MethodError, match=r"^mine: step failed \(KeyError: 'mood'\)$"):
        stack.step(np.zeros(3, np.float32), None, {})  # type: ignore[arg-type]  # it never looks
