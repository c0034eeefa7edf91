"""A coordinator as its journal shows it: also while it is down, without what only it knows."""

from __future__ import annotations

import time

from fededge._internal.suggestions import unknown
from fededge.config import CoordinatorConfig
from fededge_server.api.errors import NotFoundError
from fededge_server.api.schema import (
    ChangeView,
    DeviceView,
    HistoryView,
    RoundView,
    StatusView,
    VersionView,
)
from fededge_server.machine.events import ACCURACY
from fededge_server.machine.fleet.standings import ACTIVE, Standing
from fededge_server.store import Store

__all__ = ["device", "devices", "history", "status", "versions"]


def status(store: Store, config: CoordinatorConfig) -> StatusView:
    newest = store.history()[-1]
    return StatusView(
        federation=config.federation,
        coordinator="down",
        round=newest.rounds_done + 1,
        rounds=config.rounds.count,
        phase="done" if config.rounds.over(newest.rounds_done) else "waiting",
        paused=store.paused,
        version=newest.version,
        accuracy=newest.accuracy,
        quorum=config.rounds.quorum,
        devices=devices(store),
    )


def devices(store: Store) -> list[DeviceView]:
    """The devices that the journal knows."""
    known, ordered = store.fleet(), store.standings()
    _, out = store.roster()
    now = time.time()

    def view(name: str) -> DeviceView:
        order = ordered.get(name, ACTIVE)
        standing, report = order.at(now), known.get(name)
        return DeviceView(
            device=name,
            standing=standing.value,
            rest_left=order.until - now if standing is Standing.RESTED else None,
            quarantined=name in out or standing is Standing.QUARANTINED,
            accuracy=None if report is None else report.scalars.get(ACCURACY),
        )

    return [view(name) for name in sorted({*known, *ordered})]


def device(store: Store, name: str) -> DeviceView:
    """One device; NotFoundError if the journal does not have it."""
    found = {each.device: each for each in devices(store)}
    if name not in found:
        raise NotFoundError(unknown("device", name, found))
    return found[name]


def versions(store: Store) -> list[VersionView]:
    """Every version of the run, oldest first."""
    pins, changes = store.pinned(), store.changes()
    return [
        VersionView(
            version=record.version,
            round=record.rounds_done,
            accuracy=record.accuracy,
            restored=record.restored,
            kept=store.model(record.version).exists(),
            date=record.date,
            participants=record.participants,
            pinned=record.version in pins,
            changes=[f"{c.kind}: {c.what}" for c in changes if c.round == record.rounds_done],
        )
        for record in store.rounds()
    ]


def history(store: Store) -> HistoryView:
    rounds = [
        RoundView(
            round=record.rounds_done,
            version=record.version,
            accuracy=record.accuracy,
            restored=record.restored,
            seconds=record.seconds,
            date=record.date,
            participants=record.participants,
            devices={name: told.get(ACCURACY) for name, told in record.reports.items()},
        )
        for record in store.rounds()
    ]
    orders = [{"at": at, **order} for at, order in store.orders()]
    changes = [ChangeView(**change._asdict()) for change in store.changes()]
    return HistoryView(rounds=rounds, orders=orders, changes=changes)
