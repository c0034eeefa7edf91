"""The operator's orders in the journal: durable, idempotent, and refused with a sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fededge.errors import RefusedError
from fededge.wire.messages import Manifest, Report
from fededge_server.machine.fleet.orders import (
    DrainOrder,
    ForgetOrder,
    PauseOrder,
    PinOrder,
    QuarantineOrder,
    ReleaseOrder,
    RestOrder,
    ResumeOrder,
    RevokeOrder,
    UnpinOrder,
    read_order,
)
from fededge_server.machine.fleet.standings import STANDINGS, Standing
from fededge_server.store import CheckedUpdate, Progress, Store

V0, V1 = "000000-0123456789abcdef", "000001-fedcba9876543210"
NOW = 1e9
DATA = b"an update"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A journal after one round, which a and b had answered; both were asked for the next."""
    made = Store(tmp_path / "state")
    made.open()
    made.enter(Progress(0, V0, "0" * 64, None), "f" * 64, {}, None)
    made.remember(0, V0, {"a": 5, "b": 6}, ["a", "b"])
    for device in "ab":
        accept(made, device, V0, 0)
    made.enter(Progress(1, V1, "1" * 64, 0.5), "f" * 64, {"a": {}, "b": {}}, 2.0)
    made.remember(1, V1, {"a": 5, "b": 6}, [])
    yield made
    made.close()


def accept(store: Store, device: str, version: str, number: int) -> None:
    """An update that passed its check, on disk and in the journal."""
    store.keep_whole(version, device, memoryview(DATA))
    manifest = Manifest(1, 1024, len(DATA), hashlib.sha256(DATA).hexdigest())
    report = Report(device, "run", version, "ab" * 32, manifest, {})
    store.accept(CheckedUpdate(device, report, number, 1.0))


def write_files(store: Store, *versions: str) -> None:
    """Stand-ins for the files of versions."""
    for version in versions:
        for path in store.version_files(version):
            path.write_bytes(b"numbers")


def reopened(store: Store) -> Store:
    store.close()
    store.open()
    return store


def test_an_order_outlasts_the_process_and_is_in_the_history(store: Store) -> None:
    assert store.order(QuarantineOrder("a", "its lens is covered"), NOW).changed
    assert reopened(store).recall(NOW).standings["a"][0] is Standing.QUARANTINED
    assert store.orders() == [
        (NOW, {"order": "quarantine", "device": "a", "reason": "its lens is covered"})
    ]


ORDERS = [DrainOrder("a"), QuarantineOrder("a"), ReleaseOrder("a"), PauseOrder(), ResumeOrder()]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_an_order_that_is_repeated_changes_nothing(store: Store, order: object) -> None:
    store.order(order, NOW)
    entries, before = store._seal.entries, store.orders()
    again = store.order(order, NOW + 1)
    assert not again.changed
    assert (store._seal.entries, store.orders()) == (entries, before)


def test_a_rest_ends_by_itself_also_while_the_coordinator_is_down(store: Store) -> None:
    store.order(RestOrder("a", 60.0), NOW)
    assert reopened(store).recall(NOW + 20).standings["a"] == (Standing.RESTED, 40.0)
    assert store.recall(NOW + 61).standings["a"][0] is Standing.ACTIVE


def test_a_standing_follows_the_table(store: Store) -> None:
    """Each pair of standings: the order that leads there is taken, or refused as the table says."""
    orders = {
        Standing.DRAINED: DrainOrder("a"),
        Standing.RESTED: RestOrder("a", 60.0),
        Standing.QUARANTINED: QuarantineOrder("a"),
        Standing.ACTIVE: ReleaseOrder("a"),
        Standing.REVOKED: RevokeOrder("a"),
    }
    for before in Standing:
        for after in Standing:
            store.order(ReleaseOrder("a"), NOW)
            store.order(orders[before], NOW)
            if after in STANDINGS[before] or after is before:
                store.order(orders[after], NOW)
                assert store.recall(NOW).standings.get("a", (Standing.ACTIVE,))[0] is after
            else:
                with pytest.raises(RefusedError, match=f"a is {before.value}: release it first"):
                    store.order(orders[after], NOW)


def test_an_unknown_device_is_refused_with_the_closest(store: Store) -> None:
    store.remember(1, V1, {}, ["cam-1"])
    with pytest.raises(RefusedError, match="no device 'cam1'; did you mean 'cam-1'"):
        store.order(DrainOrder("cam1"), NOW)
    assert store.order(DrainOrder("cam1"), NOW, heard=["cam1"]).changed
    assert len(store.orders()) == 1


def test_quarantine_drops_an_accepted_update_that_no_version_was_made_of(store: Store) -> None:
    accept(store, "a", V1, 1)
    store.order(QuarantineOrder("a"), NOW)
    store.order(QuarantineOrder("b"), NOW)
    recalled = reopened(store).recall(NOW)
    assert "a" not in recalled.accepted
    assert recalled.accepted["b"].version == V0, "it is in a version: a repetition must be known"


def test_a_forgotten_device_has_left_no_row(store: Store) -> None:
    accept(store, "a", V1, 1)
    store.order(QuarantineOrder("a"), NOW)
    store.order(ForgetOrder("a"), NOW)
    recalled = reopened(store).recall(NOW)
    assert recalled.known == {"b"}
    assert recalled.asked == {V0: {"b": 6}, V1: {"b": 6}}
    assert {*recalled.accepted} == {"b"}
    assert "a" not in recalled.standings
    assert "a" not in store.fleet()
    store.order(ForgetOrder("b"), NOW)
    assert store.recall(NOW).asked == {}, "a round that asked nobody has not begun"


def test_release_ends_a_quarantine_for_bad_updates_too(store: Store) -> None:
    with store._transaction():
        store._put("quarantined", "device", "a")
    assert store.order(ReleaseOrder("a"), NOW).changed
    assert reopened(store).recall(NOW).quarantined == frozenset()


def test_a_pause_outlasts_the_process(store: Store) -> None:
    store.order(PauseOrder(), NOW)
    assert reopened(store).recall().paused
    assert store.paused
    store.order(ResumeOrder(), NOW)
    assert not reopened(store).recall().paused


def test_a_pinned_version_is_never_pruned_until_it_is_unpinned(store: Store) -> None:
    write_files(store, V0, V1)
    assert store.order(PinOrder(V0), NOW).changed
    assert not store.order(PinOrder(V0), NOW + 1).changed
    store = reopened(store)
    store.prune(1)
    assert store.pinned() == {V0}
    assert store.kept(V0)
    assert store.order(UnpinOrder(V0), NOW + 2).changed
    assert not store.order(UnpinOrder(V0), NOW + 3).changed
    store.prune(1)
    assert (store.kept(V0), store.kept(V1), store.pinned()) == (False, True, frozenset())
    assert [(at, order["order"], order["version"]) for at, order in store.orders()] == [
        (NOW, "pin", V0),
        (NOW + 2, "unpin", V0),
    ]


def test_a_version_whose_model_is_gone_cannot_be_pinned(store: Store) -> None:
    write_files(store, V1)
    with pytest.raises(RefusedError, match=f"the model of {V0} was pruned"):
        store.order(PinOrder(V0), NOW)
    with pytest.raises(RefusedError, match="there is no version '000007-0123456789abcdef'"):
        store.order(PinOrder("000007-0123456789abcdef"), NOW)
    assert store.orders() == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"order": "burn", "device": "a"}',
        b'{"order": "drain"}',
        b'{"order": "drain", "device": "a/b"}',
        b'{"order": "drain", "device": "a", "more": 1}',
        b'{"order": "rest", "device": "a", "seconds": -1}',
        b'{"order": "pin"}',
        b'{"order": "pin", "version": "../../etc/passwd"}',
        b'{"order": "rest", "device": "a", "seconds": 1e300}',
        b'{"order": "quarantine", "device": "a", "reason": "\\u001b[31m"}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_an_order_is_refused_with_one_line(text: bytes) -> None:
    with pytest.raises(RefusedError, match=r"^not an order: [^\n]*\Z"):
        read_order(text)


def test_a_device_that_nobody_has_heard_of_can_be_revoked(store: Store) -> None:
    """A box may be stolen before it joins."""
    with pytest.raises(RefusedError):
        store.order(QuarantineOrder("stolen"), NOW)
    assert store.order(RevokeOrder("stolen", "stolen"), NOW).changed
    assert not store.order(RevokeOrder("stolen"), NOW).changed
    assert store.standings()["stolen"].standing is Standing.REVOKED


def test_devices_that_were_revoked_and_released_are_known(store: Store) -> None:
    """Only those that were revoked, and whose last word on it was a release."""
    for device in ("a", "b", "stolen"):
        store.order(RevokeOrder(device), NOW)
    for order in (ReleaseOrder("a"), ReleaseOrder("b"), ForgetOrder("stolen"), RevokeOrder("b")):
        store.order(order, NOW)
    store.order(PauseOrder(), NOW)
    assert reopened(store).let_in() == ["a"]
