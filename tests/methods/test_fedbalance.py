"""FedBalance's two models against a plain loop in double precision, and in ONNX Runtime."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fededge.errors import ConfigError, MethodError
from fededge.export.parity import predict, session
from fededge.export.template import Template
from fededge.flat import FlatModel
from fededge.method.base import Batch, Output, Phase
from fededge.methods import Method, Private, Stack, method
from fededge.methods.fedbalance import FedBalance
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess, build
from fededge.models.base import Classifier
from fededge.training import Examples, Trainer
from tests.training_fixtures import Data, Make, Nets, Take

WEAK = FlatModel(build("lenet5", 3, (1, 16, 16), 0))


def linear() -> FlatModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(4)
        return FlatModel(Classifier(nn.Flatten(), nn.Linear(256, 3)))


def double(net: FlatModel, vector: Tensor) -> nn.Module:
    """The network with these values, in double precision and apart from the flat vector."""
    module = copy.deepcopy(net.module)
    module.load_state_dict(net.layout.views(vector.clone()), strict=False)
    return module.double()


def shares(data: Examples) -> Tensor:
    return torch.bincount(data.y, minlength=3).double() / len(data.y)


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def sgd(module: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=0.01)


def initial(device: Trainer, turn: Take, **where: int) -> Tensor:
    """ψ as it begins: a turn that learns nothing keeps it."""
    return turn(device, lr=0.0, **where).private.tensor("fedbalance.psi")


@pytest.mark.parametrize("persist", [False, True])
def test_three_turns_are_the_plain_loop(
    persist: bool, examples: Data, trainer: Make, turn: Take
) -> None:
    """One loss, one backward, two optimisers; ψ's lives on between the turns where it persists."""
    net, data = linear(), examples(9, side=16)
    text = f"fedbalance(persist_psi_momentum={str(persist).lower()})"
    device, private = trainer(text, net, data), Private()
    w, x, alpha = net.vector.clone(), data.x.double() / 255, shares(data)
    psi = double(WEAK, initial(trainer("fedbalance", linear(), data), turn))
    own = sgd(psi)
    for number in range(3):
        phi = double(net, w)
        both = sgd(phi)
        if not persist:
            own = sgd(psi)
        for _ in range(4):
            both.zero_grad()
            own.zero_grad()
            F.cross_entropy(phi(x) + alpha * psi(x), data.y).backward()
            both.step()
            own.step()
        answer = turn(
            device,
            private,
            received=w,
            number=number,
            epochs=4,
            batch_size=9,
            weight_decay=0.01,
        )
        private = answer.private
        assert torch.allclose(answer.upload.double(), flat(phi), atol=1e-5)
        assert torch.allclose(private.tensor("fedbalance.psi").double(), flat(psi), atol=1e-5)
        assert ("fedbalance.momentum" in private) == persist
        w = answer.upload + 0.01
    if persist:
        buffers = [own.state[p]["momentum_buffer"].reshape(-1) for p in psi.parameters()]
        kept = private.tensor("fedbalance.momentum").double()
        assert torch.allclose(kept, torch.cat(buffers), atol=1e-5)


def test_momentum_that_persists_makes_a_difference_from_the_second_turn_on(
    examples: Data, trainer: Make, turn: Take
) -> None:
    data, w = examples(9, side=16), linear().vector.clone()
    found: dict[str, list[Tensor]] = {}
    for persist in ("true", "false"):
        device = trainer(f"fedbalance(persist_psi_momentum={persist})", linear(), data)
        private = Private()
        for number in range(2):
            answer = turn(device, private, received=w, number=number)
            private = answer.private
            found.setdefault(persist, []).append(private.tensor("fedbalance.psi"))
    assert torch.equal(found["true"][0], found["false"][0])
    assert not torch.equal(found["true"][1], found["false"][1])


def test_momentum_goes_on_only_where_the_weak_learner_is_trained(
    examples: Data, trainer: Make, turn: Take
) -> None:
    """Before its phase φ is tuned alone: ψ is as if the turn had begun with the tuned φ."""
    data, w = examples(9, side=16), linear().vector.clone()
    layer = FedBalance(persist_psi_momentum=True)
    private = turn(trainer(layer, linear(), data), received=w, batch_size=9).private
    tuned = turn(trainer("fedavg", linear(), data), received=w, epochs=2, batch_size=9).upload
    expected = turn(trainer(layer, linear(), data), private, received=tuned, batch_size=9)
    hooks = {
        "name": "tuning",
        "phase_names": ("tune", "train"),
        "phases": lambda self, r: (Phase("tune", epochs=2), Phase("train")),
        "passes": lambda self, hyper: 2 + hyper.epochs,
    }
    tuning: type[Method] = type("Tuning", (Method,), hooks)
    stack = Stack((layer, tuning()), {"fedbalance": ("train",)})
    answer = turn(trainer(stack, linear(), data), private, received=w, batch_size=9)
    for name, value in expected.private.items():
        assert torch.allclose(answer.private.tensor(name), torch.as_tensor(value), atol=1e-6)


@pytest.mark.parametrize(
    ("counts", "size", "batch"),
    [
        ([5, 2, 3], 3.0, 8),
        ([5, 2, 3], 80.0, 8),
        ([7, 0, 3], 5.0, 8),
        ([0, 9, 0], 5.0, 8),
        ([5, 2, 3], 3.0, 1),
    ],
)
def test_both_gradients_are_those_of_the_fused_logits(
    counts: list[int], size: float, batch: int
) -> None:
    """dφ = softmax(F) - Y, dψ = α (softmax(F) - Y); a missing class gives ψ no gradient."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    y = labels[torch.randint(len(labels), (batch,), generator=draw)]
    logits = [torch.randn(batch, 3, dtype=torch.float64, generator=draw) for _ in range(2)]
    logits = [z / z.abs().max() * size for z in logits]
    alpha = torch.tensor(counts).double() / sum(counts)
    p = (logits[0] + alpha * logits[1]).softmax(1) - F.one_hot(y, 3)
    data = Examples(torch.zeros(len(labels), 1), labels, labels[:0], labels[:0], 3)
    for dtype, exact in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        phi, psi = (z.detach().to(dtype).requires_grad_() for z in logits)
        weak = SimpleNamespace(module=lambda _, psi=psi: psi)
        r: Any = SimpleNamespace(data=data, memo={"psi": weak})
        out = Output(phi, phi)
        loss = FedBalance().objective(r, out, Batch(phi, ((y, 1.0),))).loss(out, y)
        loss.backward()
        assert phi.grad is not None
        assert psi.grad is not None
        assert torch.allclose(phi.grad.double(), p / batch, atol=exact)
        assert torch.allclose(psi.grad.double(), alpha * p / batch, atol=exact)
        assert (psi.grad[:, alpha == 0] == 0).all()


def test_the_weak_learner_begins_as_run_and_device_decide(
    examples: Data, trainer: Make, turn: Take
) -> None:
    data = examples(5, side=16)
    first = initial(trainer("fedbalance", linear(), data), turn)
    assert torch.equal(first, initial(trainer("fedbalance", linear(), data), turn, number=7))
    assert not torch.equal(first, initial(trainer("fedbalance", linear(), data), turn, seed=1))
    other = trainer("fedbalance", linear(), data, "d2")
    assert not torch.equal(first, initial(other, turn))
    assert torch.allclose(first.std(), WEAK.vector.std(), rtol=0.1)


def test_the_personal_model_is_both_with_batch_norm_too(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    """φ(x) + α ⊙ ψ(x), though running statistics come last in a vector."""
    net, data = deep(), examples(12, side=16, held=6)
    device = trainer("fedbalance", net, data)
    answer = turn(device, epochs=2)
    phi, psi = double(net, answer.upload), double(WEAK, answer.private.tensor("fedbalance.psi"))
    x = data.held_x.double() / 255
    with torch.no_grad():
        expected = phi.eval()(x) + shares(data) * psi.eval()(x)
        device.deployed.load(answer.personal)
        found = device.deployed.module.eval()(data.held_x.float() / 255)
    assert torch.allclose(found.double(), expected, atol=1e-5)
    assert not torch.allclose(phi(x), expected, atol=1e-3)
    assert answer.personal_accuracy == float((expected.argmax(1) == data.held_y).double().mean())


def test_the_personal_model_may_be_the_sent_one(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    net, data = deep(), examples(12, side=16)
    device = trainer("fedbalance(deploy=generic)", net, data)
    answer = turn(device)
    assert device.deployed is net
    assert torch.equal(answer.personal, answer.upload)
    fused = turn(trainer("fedbalance", deep(), data), received=deep().vector)
    assert torch.equal(answer.upload, fused.upload)


def test_the_personal_model_can_be_exported(examples: Data, turn: Take) -> None:
    """ONNX Runtime gives the probabilities of φ(x) + α ⊙ ψ(x)."""
    spec = ModelSpec("lenet5", ("a", "b", "c"), (1, 16, 16), (0.4,), (0.3,))
    net, data = FlatModel(build("lenet5", 3, (1, 16, 16), 3)), examples(12, side=16)
    preprocess = Preprocess(spec)
    device = Trainer("d1", net, preprocess, data, method("fedbalance"))
    answer = turn(device, epochs=2)
    file = Template.trace(device.deployed.module, spec).fill(answer.personal, {})
    found = predict(session(file), data.held_x)
    phi, psi = double(net, answer.upload), double(WEAK, answer.private.tensor("fedbalance.psi"))
    x = preprocess(data.held_x).double()
    expected = (phi(x) + shares(data) * psi(x)).softmax(1)
    assert torch.allclose(found.double(), expected, atol=1e-5)


def test_updates_count_by_their_examples() -> None:
    stack = method("fedbalance")
    scalars: Mapping[str, float] = {"examples": 30.0, "steps": 2.0, "loss": 1.0}
    assert stack.weight(scalars) == 30.0
    assert stack.scalars == method("fedavg").scalars


def test_another_weak_learner(examples: Data, trainer: Make, turn: Take) -> None:
    device = trainer("fedbalance(weak=mlpnet)", linear(), examples(6, side=16))
    size = FlatModel(build("mlpnet", 3, (1, 16, 16), 0)).layout.size
    assert turn(device).private.tensor("fedbalance.psi").shape == (size,)


def test_bad_options_and_unfit_data_are_one_sentence_each(
    plain: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    with pytest.raises(MethodError, match=r"^fedbalance\(weak=lenett.*: weak must be one of lenet"):
        method("fedbalance(weak=lenett)")
    with pytest.raises(MethodError, match="must be one of fused, generic; got 'phi'"):
        method("fedbalance(deploy=phi)")
    with pytest.raises(ConfigError, match="lenet5 takes images of at least 16x16 pixels"):
        turn(trainer("fedbalance", plain(), examples(4)))
    tokens = torch.zeros(4, 4, dtype=torch.int64)
    texts = Examples(tokens, tokens[:, 0], tokens[:0], tokens[:0, 0], 3)
    with pytest.raises(MethodError, match="weak learners for images only"):
        turn(trainer("fedbalance", plain(), texts))
