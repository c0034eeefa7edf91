"""The states that an agent without a key believes, and when."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fededge.wire.messages import State
from fededge_agent.machine.caution import STANDS, Caution
from tests.device_agent.machine.test_agent import NEXT, STATE


def other(**fields: Any) -> State:
    return msgspec.structs.replace(STATE, **fields)


def believing(state: State = STATE) -> Caution:
    caution = Caution("")
    assert caution.weigh(state, 0.0)
    return caution


def test_the_states_of_a_run_are_believed_at_once() -> None:
    caution = believing()
    assert caution.weigh(NEXT, 1.0)
    assert caution.weigh(other(phase="done", deadline=3.0, rounds=9, asked=1), 2.0)
    assert caution.tick(100.0) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"run": "another"},
        {"seed": 1},
        {"method": "fedprox"},
        {"encoding": "float16"},
        {"layout": "ef" * 32},
        {"training": msgspec.structs.replace(STATE.training, epochs=10_000)},
        {"model": msgspec.structs.replace(STATE.model, labels=("x", "y"))},
    ],
)
def test_other_terms_must_stand_for_a_while(fields: dict[str, Any]) -> None:
    caution, changed = believing(), other(**fields)
    assert not caution.weigh(changed, 10.0)
    assert caution.tick(10.0 + STANDS - 0.1) is None
    assert caution.tick(10.0 + STANDS) == changed
    assert caution.weigh(changed, 30.0), "they are the terms now"
    assert not caution.weigh(STATE, 31.0)


def test_other_terms_that_are_contradicted_are_forgotten() -> None:
    caution = believing()
    assert not caution.weigh(other(run="another"), 10.0)
    assert caution.weigh(STATE, 10.5)
    assert caution.tick(100.0) is None
    assert not caution.weigh(other(run="another"), 101.0)
    assert caution.tick(102.0) is None, "the time counts anew"


def test_a_new_run_goes_on_while_it_is_weighed() -> None:
    caution, run = believing(), {"run": "another"}
    assert not caution.weigh(other(**run), 10.0)
    later = msgspec.structs.replace(NEXT, **run)
    assert not caution.weigh(later, 10.0 + STANDS / 2)
    assert caution.tick(10.0 + STANDS) == later, "its newest state, at the time of its first"


def test_an_agent_without_a_run_accepts_the_first_state() -> None:
    assert Caution("").weigh(STATE, 0.0)
    assert Caution(STATE.run).weigh(STATE, 0.0)


def test_private_state_of_another_run_is_not_given_up_for_the_first_state_that_comes() -> None:
    caution = Caution("ours")
    assert not caution.weigh(STATE, 0.0)
    assert caution.weigh(other(run="ours"), 1.0)
