"""The paired test behind promotion, against coins that are really thrown."""

from __future__ import annotations

import itertools

import pytest

from fededge_agent.exports.significance import LEVEL, accuracy, chance_of_loss


def thrown(lost: int, won: int) -> float:
    """The share of all outcomes of `lost + won` fair coins with at least `lost` heads."""
    outcomes = [*itertools.product((0, 1), repeat=lost + won)]
    return sum(sum(outcome) >= lost for outcome in outcomes) / len(outcomes)


def results(lost: int, won: int, both: int, neither: int) -> tuple[list[bool], list[bool]]:
    """The right answers of a new and an old model; only the old one has `lost`, the new `won`."""
    new = [False] * lost + [True] * won + [True] * both + [False] * neither
    old = [True] * lost + [False] * won + [True] * both + [False] * neither
    return new, old


@pytest.mark.parametrize(("lost", "won"), [*itertools.product(range(7), range(7))])
def test_the_chance_is_that_of_fair_coins(lost: int, won: int) -> None:
    assert chance_of_loss(*results(lost, won, 9, 4)) == thrown(lost, won)


def test_examples_on_which_both_agree_tell_nothing() -> None:
    few, many = results(3, 1, 0, 0), results(3, 1, 5000, 700)
    assert chance_of_loss(*few) == chance_of_loss(*many)


def test_one_of_seventy_two_is_chance_and_five_are_not() -> None:
    assert chance_of_loss(*results(1, 0, 71, 0)) == 0.5
    assert chance_of_loss(*results(4, 0, 68, 0)) == 1 / 16 > LEVEL
    assert chance_of_loss(*results(5, 0, 67, 0)) == 1 / 32 < LEVEL
    assert accuracy(results(1, 0, 71, 0)[0]) == 71 / 72


def test_a_small_but_certain_loss_among_many_examples_is_noticed() -> None:
    """300 lost and 230 won of 100,000: 3.04 standard deviations of 530 coins, so p = 0.0014."""
    assert chance_of_loss(*results(300, 230, 99_000, 470)) == pytest.approx(0.00137, rel=0.02)


def test_results_on_different_examples_are_not_compared() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        chance_of_loss([True], [True, False])
