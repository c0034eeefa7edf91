"""FedPHP over three turns against a plain loop; its schedule and first turn; what it refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fededge.errors import MethodError
from fededge.federated.selection import expected_turns
from fededge.methods import Private, method
from fededge.methods.fedphp import FedPHP
from fededge.training import Examples
from tests.loops import Loss, close, cross_entropy, curved, descend, look
from tests.training_fixtures import Data, Make, Nets, Take

LAM, T = 0.3, 4.0


def taught(kind: str, plogits: Tensor, phs: Tensor) -> Loss:
    """(1 - λ) CE + λ L_kt for a teacher's logits and features."""

    def kd(z: Tensor, h: Tensor, y: Tensor) -> Tensor:
        p, q = (z / T).softmax(1), (plogits / T).softmax(1)
        return T**2 * (q * (q / p).log()).sum(1).mean()

    def fedrepo(z: Tensor, h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, (plogits / T).softmax(1))

    def mmd(z: Tensor, h: Tensor, y: Tensor) -> Tensor:
        both = torch.cat([h, phs])
        apart = (both[:, None] - both[None]).square().sum(2)
        width = apart.detach().sum() / (len(both) * (len(both) - 1))
        k = sum((-apart / (width * 2.0**i)).exp() for i in range(-2, 3))
        assert isinstance(k, Tensor)
        sign = torch.cat([torch.ones(len(h)), -torch.ones(len(phs))]).double() / len(h)
        return sign @ k @ sign

    transfer = {"kd": kd, "fedrepo": fedrepo, "mmd": mmd}[kind]
    return lambda z, h, y: (1 - LAM) * F.cross_entropy(z, y) + LAM * transfer(z, h, y)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("kd", ""), ("kd", ", kd=map"), ("fedrepo", ", kd=fedrepo"), ("mmd", ", transfer=mmd")],
)
def test_three_turns_are_those_of_a_plain_loop(
    kind: str, options: str, examples: Data, trainer: Make, turn: Take
) -> None:
    """A run that expects two turns:  mu is 0, 0.45 and 0.9; running statistics
    are inherited like everything else, and the teacher uses its own.
    """
    data, net = examples(9), curved()
    device = trainer(f"fedphp(lam={LAM}{options})", net, data)
    private, hpm = Private(), torch.empty(0)
    for z, mu in enumerate((0.0, 0.45, 0.9)):
        w = curved(seed=z).vector.clone()
        answer = turn(
            device,
            private,
            received=w,
            number=z,
            turns=2,
            epochs=4,
            batch_size=9,
            weight_decay=0.01,
        )
        private = answer.private
        loss = taught(kind, *look(net, hpm, data)) if z else cross_entropy
        local = descend(net, w, data, 4, loss)
        hpm = mu * hpm + (1 - mu) * local if z else local
        assert close(answer.upload, local)
        assert close(private.tensor("fedphp.hpm"), hpm)
        assert torch.equal(answer.personal, private.tensor("fedphp.hpm"))
        assert private["fedphp.z"] == z + 1
        if z:
            assert not close(answer.upload, descend(net, w, data, 4))


def test_mu_grows_to_its_cap_at_the_expected_number_of_turns() -> None:
    """20 of 100 devices in each of 150 rounds: 30 times. One turn is expected at least."""
    expected, layer = expected_turns(150, 20, 100), FedPHP()
    assert [layer.mu_z(z, expected) for z in (0, 1, 15, 30, 31, 1000)] == pytest.approx(
        [0, 0.03, 0.45, 0.9, 0.9, 0.9]
    )
    short = expected_turns(3, 1, 10)
    assert [FedPHP(mu=0.5).mu_z(z, short) for z in (0, 1, 2)] == [0, 0.5, 0.5]


@pytest.mark.parametrize("name", ["fedphp", "map"])
def test_the_runs_number_of_turns_counts_unless_the_method_has_its_own(
    name: str, examples: Data, trainer: Make, turn: Take
) -> None:
    data, kept = examples(9), turn(trainer(name, curved(), examples(9))).private

    def second(text: str, turns: int) -> Tensor:
        return turn(trainer(text, curved(seed=1), data), kept, number=1, turns=turns).personal

    assert not torch.equal(second(name, 2), second(name, 8))
    assert torch.equal(second(f"{name}(turns=8)", 2), second(name, 8))


def test_the_first_turn_is_fedavgs_bit_for_bit(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data = examples(21, side=16)
    fedavg = turn(trainer("fedavg", deep(), data), epochs=2)
    fedphp = turn(trainer("fedphp", deep(), data), epochs=2)
    assert torch.equal(fedavg.upload, fedphp.upload)
    assert torch.equal(fedphp.upload, fedphp.private.tensor("fedphp.hpm"))
    assert fedavg.scalars.keys() == fedphp.scalars.keys()


def test_without_transfer_the_model_is_inherited_all_the_same(
    deep: Nets, examples: Data, trainer: Make, turn: Take
) -> None:
    data, old = examples(21, side=16), deep(seed=9).vector
    private = Private({"fedphp.hpm": old, "fedphp.z": 15})
    fedavg = turn(trainer("fedavg", deep(), data), epochs=2)
    fedphp = turn(trainer("fedphp(lam=0)", deep(), data), private, turns=30, epochs=2)
    assert torch.equal(fedavg.upload, fedphp.upload)
    assert close(fedphp.personal, 0.45 * old + 0.55 * fedavg.upload, atol=1e-6)


def test_the_transfer_may_be_the_whole_loss(examples: Data, trainer: Make, turn: Take) -> None:
    """With lam 1 the labels have no part in it."""
    data, net, old = examples(9), curved(), curved(seed=9).vector
    other = Examples(data.x, (data.y + 1) % 3, data.held_x, data.held_y, 3)
    private = Private({"fedphp.hpm": old, "fedphp.z": 1})
    uploads = [
        turn(trainer("fedphp(lam=1)", curved(), some), private, epochs=2).upload
        for some in (data, other)
    ]
    assert torch.equal(uploads[0], uploads[1])
    assert not torch.equal(uploads[0], net.vector)


def test_it_learns_from_its_teacher_of_mixtures_too(
    examples: Data, trainer: Make, turn: Take
) -> None:
    """mixup makes inputs that nobody has seen: the teacher is asked about them."""
    data = examples(9)
    private = Private({"fedphp.hpm": curved(seed=9).vector, "fedphp.z": 1})
    uploads = [
        turn(trainer(f"fedphp(lam={lam})+mixup", curved(), data), private, epochs=2).upload
        for lam in (0, 0.5)
    ]
    assert not torch.equal(uploads[0], uploads[1])


def test_updates_count_the_same_unless_they_count_by_their_examples() -> None:
    report = {"examples": 7.0}
    assert method("fedphp").weight(report) == 1
    assert method("fedphp(agg=n)").weight(report) == 7


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("mu=1.1", "mu must lie between 0 and 1"),
        ("mu=-0.1", "mu must lie between 0 and 1"),
        ("turns=-1", "turns must be at least 0"),
        ("lam=1.5", "lam must lie between 0 and 1"),
        ("T=0", "T must be above 0"),
        ("transfer=cka", "must be one of kd, mmd; got 'cka'"),
        ("kd=mse", "must be one of map, fedrepo; got 'mse'"),
        ("agg=all", "must be one of uniform, n; got 'all'"),
    ],
)
@pytest.mark.parametrize("name", ["fedphp", "map"])
def test_a_bad_option_is_one_sentence(name: str, option: str, sentence: str) -> None:
    with pytest.raises(MethodError, match=rf"^{name}\(.*{sentence}$"):
        method(f"{name}({option})")
