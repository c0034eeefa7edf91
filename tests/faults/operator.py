"""An operator who gives orders at any moment, also to the folder of a coordinator that is down."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from fededge.errors import DiskFullError, RefusedError
from fededge_server.api.requests import OrderRequest
from fededge_server.machine.fleet.orders import (
    ApplyOrder,
    DrainOrder,
    ForgetOrder,
    PauseOrder,
    QuarantineOrder,
    ReleaseOrder,
    RestOrder,
    ResumeOrder,
)
from fededge_server.machine.settings import with_keys
from fededge_server.model.run_settings import settings_of
from fededge_server.store import Store
from tests.faults.oracle import BrokenError
from tests.faults.processes import CoordinatorService, KilledError

if TYPE_CHECKING:
    from tests.faults.world import World

__all__ = ["Operator"]


class Operator:
    """Draws orders, gives them, and tells the oracle what was acknowledged."""

    def __init__(self, world: World) -> None:
        self.world = world

    def act(self) -> None:
        """Give any order; one that is given twice must change nothing."""
        order = self._drawn()
        for _ in range(1 + self.world.chance(0.2)):
            self.give(order)

    def _drawn(self) -> Any:
        rng = self.world.rng
        device = rng.choice(self.world.names)
        orders: list[Any] = [DrainOrder(device), RestOrder(device, rng.choice((5.0, 60.0)))]
        orders += [QuarantineOrder(device), ForgetOrder(device), *[ReleaseOrder(device)] * 4]
        return rng.choice([*orders, PauseOrder(), *[ResumeOrder()] * 2, *[self._settings()] * 2])

    def _settings(self) -> ApplyOrder:
        """Other settings: some that devices train by, some that are the coordinator's alone."""
        rng, before = self.world.rng, settings_of(self.world.coordinator.config)
        values = {
            "method": rng.choice((before.method, "fedavg", "scaffold")),
            "training.lr": rng.choice((0.01, 0.02)),
            "transfer.encoding": rng.choice((before.transfer.encoding, "bfloat16+delta")),
            "transfer.chunk_bytes": rng.choice((before.transfer.chunk_bytes, 1024, 1 << 20)),
            "rounds.deadline": rng.choice((before.rounds.deadline, 90.0)),
        }
        few = {k: v for k, v in values.items() if rng.random() < 0.5}
        return ApplyOrder(with_keys(before, few))

    def settle(self) -> None:
        """All devices are released, and no pause is left: the run can end."""
        for order in (*map(ReleaseOrder, self.world.names), ResumeOrder()):
            self.give(order)

    def give(self, order: Any) -> bool:
        """Give an order; True if it was acknowledged."""
        world = self.world
        world.count("order", f"{order.name} {getattr(order, 'device', '')}")
        world.oracle.ordering(order)
        coordinator = world.coordinator
        answers: list[Any] = []
        if coordinator.alive:
            coordinator.guarded(lambda: self._ask(order, answers))
        elif (coordinator.folder / "journal.sqlite").exists():
            with contextlib.suppress(KilledError):  # it is the command that is killed
                answers.append(self._write(order))
        if not answers or isinstance(answers[0], RefusedError | DiskFullError):
            return False
        if isinstance(answers[0], Exception):
            raise BrokenError(f"{order} led to {answers[0]!r}")
        world.oracle.gave(order)
        return True

    def _ask(self, order: Any, answers: list[Any]) -> None:
        service = self.world.coordinator.service
        assert isinstance(service, CoordinatorService)
        service.take(OrderRequest(order, answers.append))

    def _write(self, order: Any) -> Any:
        """Work on the folder, as the commands do while the coordinator is down."""
        coordinator = self.world.coordinator
        store = Store(coordinator.folder)
        try:
            store.open()
            return store.order(order, coordinator.wall())
        except (RefusedError, DiskFullError) as error:
            return error
        finally:
            store.close()
