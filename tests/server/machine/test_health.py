"""Good and bad versions, by the word of the coordinator and of the devices."""

from __future__ import annotations

from pathlib import Path

from fededge_server.machine.events import Judge
from fededge_server.machine.health import Health
from fededge_server.store import Progress, Store
from tests.server.model.test_merging import LAYOUT, vector

A, B, C = (f"{number:06d}-0123456789abcdef" for number in range(3))


def test_a_version_that_falls_far_below_the_best_is_bad_and_the_one_before_stays_good() -> None:
    health = Health(max_drop=20.0)
    assert health.evaluate(A, 0.5) == ""
    assert health.evaluate(B, 0.8) == ""
    assert health.evaluate(C, 0.59) == "its accuracy is 59.0%, the best one had 80.0%"
    assert health.last_good == B


def test_a_small_loss_is_no_harm() -> None:
    health = Health(max_drop=20.0)
    health.evaluate(A, 0.8)
    assert health.evaluate(B, 0.61) == ""
    assert health.last_good == B


def told(*accuracies: float) -> dict[str, float]:
    return dict(zip("abcde", accuracies, strict=False))


def test_without_examples_of_its_own_each_device_is_compared_with_itself() -> None:
    health = Health(max_drop=20.0)
    assert health.evaluate(A, None) == ""
    assert health.hear(Judge(A, 3, 0, told(0.3, 0.6, 0.9))) == ""
    assert health.last_good == A
    assert health.hear(Judge(B, 3, 0, told(0.0, 0.6, 0.95))) == "", "one lies"
    assert health.last_good == B
    why = health.hear(Judge(C, 3, 0, told(0.05, 0.35, 1.0)))
    assert why == "the devices' accuracies are 25.0 points below their best (median)"
    assert health.last_good == B


def test_other_devices_with_harder_data_do_not_make_a_version_bad() -> None:
    health = Health(max_drop=20.0)
    health.hear(Judge(A, 3, 0, {"a": 0.9, "b": 0.9, "c": 0.9}))
    assert health.hear(Judge(B, 3, 0, {"d": 0.2, "e": 0.3, "f": 0.4})) == ""
    assert health.last_good == B


def test_two_devices_are_too_few_to_say() -> None:
    health = Health(max_drop=20.0)
    health.hear(Judge(A, 2, 0, told(0.9, 0.9)))
    assert health.hear(Judge(B, 2, 0, told(0.0, 0.0))) == ""


def test_the_coordinator_s_own_evaluation_goes_before_the_devices_word() -> None:
    health = Health(max_drop=20.0)
    health.evaluate(A, 0.8)
    health.evaluate(B, 0.1)
    assert health.hear(Judge(B, 3, 0, told(0.99, 0.99, 0.99))) == ""
    assert health.last_good == A


def test_a_version_that_most_devices_cannot_train_from_is_bad_however_good_it_scored() -> None:
    health = Health(max_drop=20.0)
    health.evaluate(A, 0.8)
    health.evaluate(B, 0.9)
    assert health.hear(Judge(B, 4, 2, {})) == ""
    assert health.hear(Judge(B, 4, 3, {})) == "3 of 4 devices could not train from it"
    assert health.last_good == A


def test_one_device_alone_makes_no_version_good_or_bad() -> None:
    """Where two or fewer took part, nobody can tell which of them lies."""
    health = Health(max_drop=20.0)
    health.hear(Judge(A, 3, 0, told(0.6, 0.6, 0.6)))
    assert health.hear(Judge(B, 2, 0, told(1.0))) == ""
    assert health.reported["a"] == 0.6, "else every later version were bad"
    assert health.hear(Judge(B, 2, 0, told(0.0, 0.7))) == ""
    assert health.hear(Judge(B, 1, 1, {})) == "", "it says that it cannot train"
    assert health.last_good == A


def test_the_journal_tells_what_devices_said_of_a_version(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open()
    reports = {"a": {"personal_accuracy": 0.7, "loss": 1.0}, "b": {"loss": 1.0}}
    for number, version in enumerate((A, B)):
        progress = Progress(number, version, "0" * 64, 0.5 if number else None)
        store.advance(progress, LAYOUT, vector(0), {}, reports if number else {}, None)
    assert store.scores() == [(A, None, {"a": 0.7}), (B, 0.5, {})]
    store.close()
