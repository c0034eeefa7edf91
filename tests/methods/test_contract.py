"""The contract of every method and composition; a new one in METHODS is covered by its name."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fededge.errors import MethodError
from fededge.flat import as_numpy, as_tensors
from fededge.method.base import State
from fededge.methods import METHODS, Hyper, Private, Stack, method
from fededge.models.head import CosineHead
from fededge.training import Answer, Trainer
from fededge.wire import chunks, tensors
from fededge.wire.messages import Report
from fededge_agent.store import AgentStore, TrainedTurn
from fededge_agent.trainer.turn_files import TurnFiles
from tests.merging import merged_turns
from tests.training_fixtures import Data, Make, Nets, Take


def combines(text: str) -> bool:
    try:
        method(text)
    except MethodError:
        return False
    return True


NEED_COSINES = ("lfd",)
"""Methods whose losses are made of cosines: another head is refused."""

SINGLE = sorted(METHODS)
COMPOSED = [f"{name}+fedprox(mu=0.1)" for name in SINGLE if combines(f"{name}+fedprox(mu=0.1)")]
every_method = pytest.mark.parametrize("name", SINGLE)
every_composition = pytest.mark.parametrize("name", [*SINGLE, *COMPOSED])


TRAINING = Hyper(epochs=2, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.01)


@dataclasses.dataclass
class Fleet:
    """Three devices, of which one has one example and one has none, and their coordinator."""

    trainers: dict[str, Trainer]
    stack: Stack
    w: Tensor
    state: State
    take: Take
    private: dict[str, Private] = dataclasses.field(default_factory=dict)
    hyper: Hyper = TRAINING

    def turns(self, number: int, seed: int = 0) -> dict[str, Answer]:
        return {device: self.turn(device, number, seed) for device in self.trainers}

    def turn(self, device: str, number: int, seed: int = 0) -> Answer:
        return self.take(
            self.trainers[device],
            self.private.get(device),
            received=self.w,
            sent=as_tensors(self.stack.send(self.state)),
            seed=seed,
            number=number,
            **dataclasses.asdict(self.hyper),
        )

    def merge(self, answers: Mapping[str, Answer]) -> tuple[Tensor, State]:
        layout = self.trainers["d1"].net.layout
        return merged_turns(self.stack, self.w, self.state, answers, devices=5, layout=layout)

    def rounds(self, count: int) -> Fleet:
        for number in range(count):
            answers = self.turns(number)
            self.private = {device: answer.private for device, answer in answers.items()}
            self.w, self.state = self.merge(answers)
        return self


@pytest.fixture
def fleet(deep: Nets, examples: Data, trainer: Make, turn: Take) -> Callable[[str], Fleet]:
    def make(name: str) -> Fleet:
        sizes = {"d1": 13, "d2": 1, "d3": 0}
        head = CosineHead if name.startswith(NEED_COSINES) else nn.Linear
        trainers = {
            device: trainer(name, deep(head=head), examples(count, side=16, seed=count), device)
            for device, count in sizes.items()
        }
        net, stack = trainers["d1"].net, trainers["d1"].method
        return Fleet(trainers, stack, net.vector.clone(), stack.initial(net.layout), turn)

    return make


def copied(values: Mapping[str, object]) -> dict[str, object]:
    return {k: copy.deepcopy(v) for k, v in values.items()}


def same(a: Mapping[str, object], b: Mapping[str, object]) -> bool:
    return a.keys() == b.keys() and all(same_value(value, b[name]) for name, value in a.items())


def same_value(a: object, b: object) -> bool:
    """Private state consists of tensors and numbers, method state of arrays."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and a == b


def same_answer(a: Answer, b: Answer) -> bool:
    return (
        torch.equal(a.upload, b.upload)
        and a.scalars == b.scalars
        and same(a.private, b.private)
        and torch.equal(a.personal, b.personal)
    )


@pytest.mark.parametrize("name", SINGLE)
def test_the_constructor_only_stores(name: str) -> None:
    kind = METHODS[name]
    assert kind() == kind()
    assert kind(**dataclasses.asdict(kind())) == kind()
    assert vars(kind()) == dataclasses.asdict(kind())
    for field in dataclasses.fields(kind):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(kind(), field.name, field.default)


@every_composition
def test_inputs_are_unchanged(name: str, fleet: Callable[[str], Fleet]) -> None:
    """Model, private state, method state and data; in the second turn, which has private state."""
    some = fleet(name).rounds(1)
    w, state = some.w.clone(), copied(some.state)
    private = {device: copied(values) for device, values in some.private.items()}
    data = [t.clone() for d in some.trainers.values() for t in (d.data.x, d.data.y)]
    answers = some.turns(1)
    uploads = {device: answer.upload.clone() for device, answer in answers.items()}
    some.merge(answers)
    assert torch.equal(some.w, w)
    assert same(some.state, state)
    assert all(same(some.private[device], before) for device, before in private.items())
    after = [t for d in some.trainers.values() for t in (d.data.x, d.data.y)]
    assert all(torch.equal(a, b) for a, b in zip(data, after, strict=True))
    assert all(torch.equal(answers[device].upload, upload) for device, upload in uploads.items())


@every_composition
def test_a_repeated_turn_gives_the_same_bytes(name: str, fleet: Callable[[str], Fleet]) -> None:
    """On the same device and on a new one, whatever its network held and did before."""
    some, other = fleet(name).rounds(1), fleet(name)
    first = some.turns(1)
    again = some.turns(1)
    other.w, other.state, other.private = some.w, some.state, some.private
    for trainer in other.trainers.values():
        trainer.net.vector.normal_(generator=torch.Generator().manual_seed(1))
        trainer.net.module.eval()
    fresh = other.turns(1)
    for device, answer in first.items():
        assert same_answer(answer, again[device])
        assert same_answer(answer, fresh[device])


@every_method
def test_seed_and_round_decide_the_bytes(name: str, fleet: Callable[[str], Fleet]) -> None:
    some = fleet(name)
    uploads = [some.turns(*key)["d1"].upload for key in ((0, 0), (0, 1), (1, 0))]
    assert not torch.equal(uploads[0], uploads[1])
    assert not torch.equal(uploads[0], uploads[2])


@every_method
def test_torchs_global_randomness_has_no_part_in_it(
    name: str, fleet: Callable[[str], Fleet]
) -> None:
    """Though the network has dropout. Its state is afterwards what it was before."""
    answers = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            before = torch.get_rng_state()
            answers.append(fleet(name).rounds(1).turns(1))
            assert torch.equal(torch.get_rng_state(), before)
    assert all(same_answer(answer, answers[1][device]) for device, answer in answers[0].items())


@every_method
def test_the_order_of_devices_does_not_matter(name: str, fleet: Callable[[str], Fleet]) -> None:
    some = fleet(name).rounds(1)
    answers = some.turns(1)
    model, state = some.merge(answers)
    for order in (("d3", "d2", "d1"), ("d2", "d3", "d1")):
        other_model, other_state = some.merge({device: answers[device] for device in order})
        assert torch.equal(model, other_model)
        assert same(state, other_state)


@every_composition
def test_private_state_and_update_survive_a_restart(
    name: str, fleet: Callable[[str], Fleet], tmp_path: Path
) -> None:
    """Through the agent's own store and the wire's own bytes; the next turn is the same."""
    some = fleet(name).rounds(1)
    answer = some.turns(1)["d1"]
    layout = some.trainers["d1"].net.layout
    payload = tensors.encode(layout, {"model": as_numpy(answer.upload)})
    report = Report(
        device="d1",
        run="r",
        version=f"000001-{'0' * 16}",
        layout=layout.hash,
        manifest=chunks.manifest(payload, 1024),
        scalars=answer.scalars,
    )
    store = AgentStore(tmp_path / "state")
    store.open()
    files = TurnFiles(store.folder, store.begin_turn())
    now = files.write_private(some.stack.kept_at_once(some.private["d1"], answer.private))
    update, _ = files.write_update(lambda file: file.write(payload), 1024)
    store.save_turn(TrainedTurn(report, update, now, files.write_accepted(answer.private)))
    store.settle(True)
    store.close()
    again = AgentStore(tmp_path / "state")
    again.open()
    restored = TurnFiles(again.folder, again.index).private()
    again.close()
    assert np.array_equal(tensors.decode(layout, payload)["model"], as_numpy(answer.upload))
    assert same(restored, answer.private)
    some.private["d1"] = answer.private
    kept = some.turns(2)["d1"]
    some.private["d1"] = restored
    assert same_answer(some.turns(2)["d1"], kept)


@every_composition
def test_an_empty_device_counts_nothing_and_one_example_is_enough(
    name: str, fleet: Callable[[str], Fleet]
) -> None:
    some = fleet(name)
    for number in range(2):
        answers = some.turns(number)
        for answer in answers.values():
            assert torch.isfinite(answer.upload).all()
            assert torch.isfinite(answer.personal).all()
            assert all(map(math.isfinite, answer.scalars.values()))
            some.stack.check(answer.scalars, some.hyper)
        assert some.stack.weight(answers["d3"].scalars) == 0
        assert some.stack.weight(answers["d2"].scalars) > 0
        assert not torch.equal(answers["d2"].upload, some.w)
        with_empty, _ = some.merge(answers)
        without, _ = some.merge({d: a for d, a in answers.items() if d != "d3"})
        assert torch.equal(with_empty, without)
        only_empty, state = some.merge({"d3": answers["d3"]})
        assert torch.equal(only_empty, some.w)
        assert same(state, some.state)
        some.rounds(1)


@every_method
def test_every_scalar_has_a_range(name: str) -> None:
    """One that follows from what the coordinator knows: none is left to the default."""
    kind = METHODS[name]()
    for examples, steps in ((0, 0), (1, 1), (1000, 40), (2**53, 2**53)):
        ranges = kind.ranges(Hyper(), examples, steps)
        assert ranges.keys() == kind.scalars
        for allowed in ranges.values():
            assert math.isfinite(allowed.low)
            assert math.isfinite(allowed.high)


TRAININGS = {
    "plain": Hyper(epochs=1, batch_size=4, lr=0.1, momentum=0.0),
    "steps of one": Hyper(epochs=3, batch_size=1, lr=0.01, momentum=0.5, weight_decay=0.1),
    "heavy": Hyper(epochs=7, batch_size=2, lr=0.01, momentum=0.999, weight_decay=1.0),
    "one batch": Hyper(epochs=1, batch_size=1000, lr=0.1, momentum=0.9),
    "tiny lr": Hyper(epochs=2, batch_size=4, lr=1e-30, momentum=0.9, weight_decay=0.01),
    "large lr": Hyper(epochs=2, batch_size=4, lr=30.0, momentum=0.9),
    "huge lr": Hyper(epochs=1, batch_size=8, lr=1e6, momentum=0.0, clip_norm=1.0),
}


@pytest.mark.parametrize("training", TRAININGS)
@every_composition
def test_the_scalars_of_honest_turns_are_in_range(
    name: str, training: str, fleet: Callable[[str], Fleet]
) -> None:
    """Also without examples, with one, and where the training is near divergence."""
    some = fleet(name)
    some.hyper = TRAININGS[training]
    for number in range(2):
        for device in some.trainers:
            answer = unless_diverged(some, device, number)
            if answer is not None:
                some.stack.check(answer.scalars, some.hyper)
                some.private[device] = answer.private


def unless_diverged(some: Fleet, device: str, number: int) -> Answer | None:
    """A device whose training diverges reports nothing."""
    try:
        return some.turn(device, number)
    except MethodError as error:
        if "diverged" not in str(error) or some.hyper.lr < 30:
            raise
        return None


@every_composition
def test_only_declared_values_leave_the_device(name: str, fleet: Callable[[str], Fleet]) -> None:
    some = fleet(name).rounds(2)
    layout = some.trainers["d1"].net.layout
    sent = some.stack.send(some.state)
    assert tuple(sent) == some.stack.sends
    tensors.encode(layout, {"model": as_numpy(some.w), **sent})
    declared = {f"{layer.name}.{piece}" for layer in some.stack.layers for piece in layer.keeps}
    for answer in some.turns(2).values():
        assert answer.scalars.keys() <= some.stack.scalars
        assert answer.private.keys() <= declared
        assert answer.upload.shape == (layout.size,)


@every_method
def test_the_personal_model_is_one_of_the_deployed_network(
    name: str, fleet: Callable[[str], Fleet]
) -> None:
    some = fleet(name)
    for number in range(2):
        for device, answer in some.turns(number).items():
            trainer = some.trainers[device]
            assert answer.personal.shape == (trainer.deployed.layout.size,)
            assert answer.personal_accuracy == trainer.accuracy(answer.personal, trainer.deployed)
            assert answer.personal_accuracy == answer.scalars["personal_accuracy"]
        some.rounds(1)


@every_method
def test_rounds_learn_what_one_device_could(name: str, fleet: Callable[[str], Fleet]) -> None:
    """The loss that a device reports falls: a method that does not train is noticed.

    Without momentum, which some methods (SCAFFOLD) are not defined for.
    """
    some = fleet(name)
    some.hyper = dataclasses.replace(some.hyper, momentum=0.0)
    before = some.turns(0)["d1"].scalars["loss"]
    assert some.rounds(8).turns(8)["d1"].scalars["loss"] < before
