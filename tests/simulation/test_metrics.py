"""The papers' metrics, on numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fededge.models.evaluation import (
    class_accuracies,
    fairness,
    kl_from_template,
    label_shares,
    learning_performance,
    mean_and_interval,
    probability_matrix,
    risk,
    wrong_spread,
)


def test_class_accuracies_count_each_class_alone() -> None:
    """The "network" says what its input says: classes 0, 0, 1, 2 for labels 0, 1, 1, 2."""
    x = torch.eye(4)[[0, 0, 1, 2]]
    y = torch.tensor([0, 1, 1, 2])
    found = class_accuracies(nn.Identity(), nn.Identity(), x, y, 4)
    assert found[:3].tolist() == [1.0, 0.5, 1.0]
    assert math.isnan(found[3])


def test_risk_is_the_error_under_every_devices_labels() -> None:
    """One model, right on class 0 only. Device a has labels 3:1, device b 0:2.
    Expected accuracy 0.75 and 0, their mean 0.375, the risk 0.625.
    """
    shares = label_shares(torch.tensor([[3, 1], [0, 2]]))
    assert shares.tolist() == [[0.75, 0.25], [0.0, 1.0]]
    assert risk(torch.tensor([[1.0, 0.0]], dtype=torch.float64), shares) == pytest.approx(0.625)


def test_classes_that_are_not_tested_count_for_nothing() -> None:
    """Class 1 has no test images: device a counts by class 0 alone, b by none, c by 0 and 2.
    Right on class 0 only: 1 and 0.25, their mean 0.625, the risk 0.375.
    """
    shares = label_shares(torch.tensor([[3, 1, 0], [0, 2, 0], [1, 4, 3]]))
    accuracies = torch.tensor([[1.0, math.nan, 0.0]], dtype=torch.float64)
    assert risk(accuracies, shares) == pytest.approx(0.375)


def test_learning_performance_splits_present_and_absent_classes() -> None:
    """Before: 0.5 on each of two classes, 0 on a third, which has no ratio. Device a holds class
    0: it goes to 1.0 (ratio 2), class 1 falls to 0.1 (0.2). Device b holds class 1: 0.25 (0.5)
    and class 0 to 0.2 (0.4). Present: (2 + 0.5) / 2; absent: (0.2 + 0.4) / 2.
    """
    before = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    after = torch.tensor([[1.0, 0.1, 1.0], [0.2, 0.25, 0.0]], dtype=torch.float64)
    counts = torch.tensor([[5, 0, 0], [0, 7, 0]])
    present, absent = learning_performance(before, after, counts)
    assert present == pytest.approx(1.25)
    assert absent == pytest.approx(0.3)


def test_a_class_that_was_all_but_unknown_counts_little() -> None:
    """0.8 falls to 0.4, 0.001 rises to 0.1: (0.4 + 0.1) / 0.801, not the mean of 0.5 and 100."""
    before = torch.tensor([0.8, 0.001], dtype=torch.float64)
    after = torch.tensor([[0.4, 0.1]], dtype=torch.float64)
    _, absent = learning_performance(before, after, torch.tensor([[0, 0]]))
    assert absent == pytest.approx(0.5 / 0.801)


def test_fairness_names_the_worst_tenth() -> None:
    scores = torch.tensor([0.9] * 18 + [0.1, 0.3])
    found = fairness(scores)
    assert found["personal_worst_tenth"] == pytest.approx(0.2)
    mean = (0.9 * 18 + 0.4) / 20
    variance = (18 * (0.9 - mean) ** 2 + (0.1 - mean) ** 2 + (0.3 - mean) ** 2) / 20
    assert found["personal_std"] == pytest.approx(math.sqrt(variance))
    assert math.isnan(fairness(torch.empty(0))["personal_std"])


def test_the_probability_matrix_is_the_mean_softmax_of_each_class() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [math.log(2.0), 0.0, 0.0]])
    found = probability_matrix(logits, torch.tensor([1, 1]), 3)
    assert found[1].tolist() == pytest.approx([(1 / 3 + 0.5) / 2, (1 / 3 + 0.25) / 2, 7 / 24])
    assert found[[0, 2]].abs().sum() == 0


def test_kl_is_zero_for_the_template_and_grows_with_the_error() -> None:
    """Two classes, tau = 0.9: Q = [[.9, .1], [.1, .9]]. For P = [[.5, .5], none]:
    0.5 ln(.5/.9) + 0.5 ln(.5/.1).
    """
    template = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    assert kl_from_template(template, tau=0.9) == pytest.approx(0.0, abs=1e-15)
    p = torch.tensor([[0.5, 0.5], [0.0, 0.0]], dtype=torch.float64)
    worked = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert kl_from_template(p, tau=0.9) == pytest.approx(worked)
    both = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    second = math.log(1 / 0.1)
    assert kl_from_template(both, tau=0.9) == pytest.approx(worked + second)
    assert kl_from_template(both, tau=0.9, mean=True) == pytest.approx((worked + second) / 2)


def test_kl_is_a_part_of_being_sure_and_a_part_of_spread() -> None:
    """The chain rule of the divergence, with each part written out for a random P."""
    draw = torch.Generator().manual_seed(3)
    p = torch.rand(4, 4, generator=draw, dtype=torch.float64).softmax(1)
    tau = 0.8
    sure, spread = 0.0, 0.0
    for y in range(4):
        own = float(p[y, y])
        s = 1 - own
        sure += own * math.log(own / tau) + s * math.log(s / (1 - tau))
        spread += sum(float(p[y, k]) * math.log(float(p[y, k]) / s * 3) for k in range(4) if k != y)
    assert wrong_spread(p) == pytest.approx(spread, rel=1e-12)
    assert kl_from_template(p, tau) == pytest.approx(sure + spread, rel=1e-12)


def test_nothing_is_spread_where_nothing_is_wrong() -> None:
    """A perfect row, and the zero row of a class without examples."""
    assert wrong_spread(torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)) == 0.0


def test_an_interval_is_around_the_mean_over_models() -> None:
    """Two models with 0.2 and 0.6: mean 0.4, s = 0.2 √2, half of the interval 1.96 · 0.2."""
    found = mean_and_interval(torch.tensor([[0.2, 1.0], [0.6, 1.0]], dtype=torch.float64))
    assert found["mean"] == pytest.approx([0.4, 1.0])
    assert found["interval"] == pytest.approx([0.392, 0.0])
    assert math.isnan(mean_and_interval(torch.ones(1, 1))["interval"][0])
