"""Every mistake in a method's text is one sentence that says what is known."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fededge.errors import MethodError
from fededge.method.base import Method, Phase, TurnView
from fededge.method.grammar import parse
from fededge.method.stack import Stack
from fededge.methods import METHODS, method
from fededge.methods.fedavg import FedAvg
from fededge.methods.fedprox import FedProx


@dataclass(frozen=True)
class Every(Method):
    """An option of every kind."""

    name: ClassVar[str] = "every"
    rate: float = 0.5
    count: int = 3
    on: bool = False
    rule: Literal["binary", "smooth"] = "binary"
    note: str = "a"


@dataclass(frozen=True)
class Halves(Method):
    name: ClassVar[str] = "halves"
    phase_names: ClassVar[tuple[str, ...]] = ("first", "second")

    def phases(self, r: TurnView) -> tuple[Phase, ...]:
        return Phase("first", 0.5), Phase("second", 0.5)


KNOWN: dict[str, type[Method]] = {kind.name: kind for kind in (FedAvg, FedProx, Every, Halves)}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no method is named; known methods: every, fedavg, fedprox, halves"),
        ("  ", "no method is named; known methods: every, fedavg, fedprox, halves"),
        (
            "fedprx",
            "unknown method 'fedprx'; did you mean 'fedprox'? "
            "(known: every, fedavg, fedprox, halves)",
        ),
        ("zzz", "unknown method 'zzz' (known: every, fedavg, fedprox, halves)"),
        ("fedavg+", "method 'fedavg+' has a + without a layer on each side"),
        ("+fedavg", "method '+fedavg' has a + without a layer on each side"),
        (
            "fedavg fedprox",
            "method 'fedavg fedprox' is not of the form name or name(key=value, ...)",
        ),
        ("fedprox(mu=1", "method 'fedprox(mu=1' is not of the form name or name(key=value, ...)"),
        (
            "fedprox(mu=(1))",
            "method 'fedprox(mu=(1))' is not of the form name or name(key=value, ...)",
        ),
        (
            "fedprox(mu=1)x",
            "method 'fedprox(mu=1)x' is not of the form name or name(key=value, ...)",
        ),
        ("fedprox(0.1)", "'0.1' in 'fedprox(0.1)' is not of the form key=value"),
        ("fedprox(mu=1,)", "'' in 'fedprox(mu=1,)' is not of the form key=value"),
        (
            "every(cuont=1)",
            "method 'every' has no option 'cuont'; did you mean 'count'? "
            "(known: count, note, on, rate, rule)",
        ),
        ("fedavg(mu=1)", "method 'fedavg' has no option 'mu' (known: none)"),
        ("fedprox(name=x)", "method 'fedprox' has no option 'name' (known: mu)"),
        ("fedprox(mu=1, mu=2)", "option 'mu' is given twice in 'fedprox(mu=1, mu=2)'"),
        ("fedprox(mu=big)", "fedprox(mu=…) must be a finite number, got 'big'"),
        ("fedprox(mu=nan)", "fedprox(mu=…) must be a finite number, got 'nan'"),
        ("fedprox(mu=1e999)", "fedprox(mu=…) must be a finite number, got '1e999'"),
        ("fedprox(mu=)", "fedprox(mu=…) must be a finite number, got ''"),
        ("every(count=1.5)", "every(count=…) must be a whole number, got '1.5'"),
        ("every(on=1)", "every(on=…) must be true or false, got '1'"),
        ("every(rule=hard)", "every(rule=…) must be one of binary, smooth; got 'hard'"),
        ("fedavg+fedavg", "method 'fedavg+fedavg' names a layer twice"),
        (
            "fedprox@third+halves",
            "method 'fedprox(mu=0.01)@third+halves': fedprox is limited to phase 'third', "
            "but halves has the phases first, second",
        ),
        (
            "fedprox@first",
            "method 'fedprox(mu=0.01)@first': fedprox is limited to phase 'first', "
            "but fedprox has the phases train",
        ),
        ("fedprox@", "method 'fedprox@' is not of the form name or name(key=value, ...)"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(MethodError) as caught:
        parse(text, KNOWN)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("fedavg", "fedavg"),
        (" fedavg( ) ", "fedavg"),
        ("fedprox", "fedprox(mu=0.01)"),
        ("fedprox (mu = 1e+1)+fedavg", "fedprox(mu=10.0)+fedavg"),
        ("every(on=TRUE)", "every(rate=0.5, count=3, on=true, rule=binary, note=a)"),
        (
            "every(rule=smooth,count=1_000)",
            "every(rate=0.5, count=1000, on=false, rule=smooth, note=a)",
        ),
        ("fedprox @first+halves", "fedprox(mu=0.01)@first+halves"),
        ("fedprox@first @second+halves", "fedprox(mu=0.01)@first@second+halves"),
    ],
)
def test_the_text_of_a_method_is_canonical(text: str, canonical: str) -> None:
    stack = parse(text, KNOWN)
    assert str(stack) == canonical
    assert parse(canonical, KNOWN) == stack


@given(st.floats(0, allow_nan=False, allow_infinity=False), st.integers(), st.booleans())
def test_no_option_loses_a_bit_in_its_text(rate: float, count: int, on: bool) -> None:
    stack = Stack((Every(rate=rate, count=count, on=on),))
    assert parse(str(stack), KNOWN) == stack


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_is_its_text(name: str) -> None:
    stack = method(name)
    assert method(str(stack)) == stack
    assert METHODS[name].name == name
    assert not any(character in name for character in "+@(), ")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_option_has_a_default_that_text_can_say(name: str) -> None:
    for field in dataclasses.fields(METHODS[name]):
        assert isinstance(field.default, bool | int | float | str)


@pytest.mark.parametrize("pair", list(itertools.permutations(sorted(METHODS), 2)), ids="+".join)
def test_two_methods_combine_or_are_both_named(pair: tuple[str, str]) -> None:
    problem = ""
    try:
        stack = method("+".join(pair))
    except MethodError as error:
        problem = str(error)
    if problem:
        assert all(name in problem for name in pair)
    else:
        assert method(str(stack)) == stack
