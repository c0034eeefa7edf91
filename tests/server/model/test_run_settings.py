"""The settings of a start: the journal's, and what the file says since; and how they change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fededge.config import CoordinatorConfig, TransferConfig
from fededge.errors import ConfigError
from fededge_server.machine.fleet.orders import ApplyOrder, read_order
from fededge_server.machine.settings import Settings, told, with_keys
from fededge_server.model.network import Network
from fededge_server.model.run_settings import settings_of
from fededge_server.model.versions import Versions
from fededge_server.store import Role, Store
from tests.server.model.test_versions import MODEL


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    opened.open()
    yield opened
    opened.close()


def started(store: Store, **keys: Any) -> Versions:
    """The versions after a start with these keys in the file."""
    config = CoordinatorConfig(federation="f", state=str(store.folder), model=MODEL)
    config = with_keys(settings_of(config), keys).put_into(config)
    network = Network(config.model, config.data, config.method, config.seed)
    return Versions.resume(config, store, network, network.start(), lambda: 1.8e9)


def applied(store: Store, **keys: Any) -> Settings:
    now = store.settings()[Role.IN_FORCE]
    wanted = with_keys(now, {key.replace("_dot_", "."): value for key, value in keys.items()})
    assert store.order(ApplyOrder(wanted), 1.8e9).changed
    return wanted


def test_what_was_applied_stays_in_force_whatever_the_file_says(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    started(store).take_effect(applied(store, training_dot_lr=0.5))
    caplog.set_level("INFO")
    again = started(store)
    assert again.config.training.lr == 0.5
    assert Role.ORDERED not in store.settings()
    assert "copy into it training.lr = 0.5" in caplog.text


def test_a_key_that_was_edited_in_the_file_is_ordered_and_others_stay_as_applied(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    started(store).take_effect(applied(store, training_dot_lr=0.5))
    caplog.set_level("INFO")
    again = started(store, **{"robust.max_norm": 3.0})
    ordered = store.settings()[Role.ORDERED]
    assert (ordered.training.lr, ordered.robust.max_norm) == (0.5, 3.0)
    assert (again.config.training.lr, again.config.robust.max_norm) == (0.5, 0.0)
    assert "setting robust.max_norm: 3.0, from the next round that begins on" in caplog.text
    started(store, **{"robust.max_norm": 3.0})
    assert store.settings()[Role.ORDERED] == ordered, "the same file says nothing new"
    started(store)
    assert Role.ORDERED not in store.settings(), "it was put back before it came into force"


def test_the_rounds_of_an_edited_file_count_at_once(store: Store) -> None:
    """It is the way out of an open round that can never reach its quorum."""
    started(store, **{"rounds.quorum": 2, "rounds.min_devices": 2})
    again = started(store, **{"rounds.quorum": 1, "rounds.min_devices": 1})
    assert again.config.rounds.quorum == 1
    assert Role.ORDERED not in store.settings()
    assert [change.what for change in store.changes()] == [
        "rounds.min_devices: 2 -> 1; rounds.quorum: 2 -> 1"
    ]


def test_settings_that_do_not_fit_each_other_are_refused_at_the_start(store: Store) -> None:
    started(store).take_effect(applied(store, method="scaffold"))
    with pytest.raises(ConfigError, match=r"robust.combine is 'median', but method 'scaffold'"):
        started(store, **{"robust.combine": "median"})


def test_a_journal_of_an_earlier_format_keeps_the_settings_that_it_noted(store: Store) -> None:
    started(store)
    old = {"method": "fedavg", "encoding": "float16", "transfer.chunk_bytes": "2048"}
    old |= {"training.lr": "0.25", "robust.roll_back": "True"}
    with store._transaction():
        store._remove("settings", "1")
        for name, value in old.items():
            store._add("facts", name, value)
    again = started(store, **{"training.lr": 0.125})
    assert again.config.transfer == TransferConfig(chunk_bytes=2048, encoding="float16")
    assert again.config.training.lr == 0.25
    assert again.config.robust.roll_back
    assert store.settings()[Role.ORDERED].training.lr == 0.125
    assert store.fact("training.lr") is None


def test_another_method_makes_a_version_of_the_same_model_and_its_state_begins_anew(
    store: Store,
) -> None:
    versions = started(store, method="scaffold")
    state = {name: vector + 1 for name, vector in versions.state.items()}
    versions.advance(1, versions.model * 2, state, {}, None)
    before = versions.progress
    assert versions.take_effect(applied(store, method="scaffold(server_lr=0.5)"))
    assert all(np.array_equal(versions.state[name], state[name]) for name in state)
    assert versions.renewed == 0
    assert versions.progress.restored == before.version
    versions.take_effect(applied(store, method="fedavg"))
    versions.take_effect(applied(store, method="scaffold"))
    assert versions.renewed == versions.progress.rounds_done == 4
    again = started(store, method="scaffold")
    assert again.renewed == 4
    assert not any(vector.any() for vector in again.state.values())
    assert again.progress.sha256 == before.sha256
    again.go_back(before.version)
    assert not any(vector.any() for vector in again.state.values()), "it was another method's"
    assert again.renewed == 5


def test_settings_of_the_coordinator_alone_need_no_version(store: Store) -> None:
    versions = started(store)
    before = versions.progress
    assert not versions.take_effect(applied(store, robust_dot_max_norm=2.0))
    assert (versions.progress, versions.config.robust.max_norm) == (before, 2.0)
    assert [(c.round, c.kind, c.what) for c in store.changes()] == [
        (0, "settings", "robust.max_norm: 0.0 -> 2.0")
    ]


def test_an_order_back_to_what_is_in_force_drops_the_one_that_waits(store: Store) -> None:
    now = started(store).settings
    applied(store, training_dot_lr=0.5)
    assert store.recall().changing
    assert not store.order(ApplyOrder(with_keys(now, {"training.lr": 0.5})), 1.0).changed
    assert "dropped" in store.order(ApplyOrder(now), 1.0).text
    assert not store.recall().changing


def test_an_order_survives_its_json(store: Store) -> None:
    order = ApplyOrder(started(store).settings)
    assert read_order(msgspec.json.encode(order)) == order
    assert json.loads(msgspec.json.encode(order))["order"] == "apply"


def test_the_difference_is_told_key_by_key() -> None:
    before = Settings()
    after = with_keys(before, {"rounds.hours": ("22:00-06:00",), "robust.roll_back": True})
    assert told(before, after) == (
        "rounds.hours: [] -> [22:00-06:00]; robust.roll_back: false -> true"
    )
