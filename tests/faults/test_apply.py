"""Settings that an operator applies come into force at the same version, whatever dies."""

from __future__ import annotations

import pytest

from fededge_server.machine.fleet.orders import ApplyOrder
from fededge_server.machine.settings import with_keys
from fededge_server.model.run_settings import settings_of
from fededge_server.store import Role, Store
from tests.faults.schedules import FAULTS, kind
from tests.faults.world import NONE, World

NEW = {
    "method": "fedavg",
    "training.lr": 0.5,
    "transfer.encoding": "bfloat16+delta",
    "transfer.chunk_bytes": 2048,
}


LONGER = kind(min_devices=4, quorum=4, count=5)


class Applying(World):
    """The operator applies other settings once, while the second round is open."""

    def look(self) -> None:
        super().look()
        folder = self.coordinator.folder
        progress = self.oracle.progress
        if progress is None or progress.rounds_done != 1:
            return
        store = Store(folder)
        asked, _ = store.roster()
        if asked and Role.ORDERED not in store.settings():
            self.operator.give(ApplyOrder(with_keys(settings_of(self.coordinator.config), NEW)))


def ended(seed: int, schedule: str) -> tuple[str, list[tuple[int, str]]]:
    """The last version, and the changes in the journal."""
    world = Applying(seed, LONGER, FAULTS.get(schedule, NONE))
    found: list[tuple[int, str]] = []
    live = world.live

    def watched() -> str:
        last = live()
        changes = Store(world.coordinator.folder).changes()
        found.extend((change.round, change.what) for change in changes)
        return last

    world.live = watched  # type: ignore[method-assign]
    return world.run(), found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kills_around_a_change_of_settings_leave_the_same_model(seed: int) -> None:
    undisturbed, changes = ended(0, "")
    assert [number for number, _ in changes] == [3], "the open round, and then the version"
    assert "training.lr: 0.01 -> 0.5" in changes[0][1]
    assert ended(seed, "processes die between commands") == (undisturbed, changes)
