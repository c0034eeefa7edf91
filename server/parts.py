"""The parts of a running coordinator, which its shell and its executor share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fededge.config import CoordinatorConfig
from fededge.service.commands import unwatched
from fededge.service.log_lines import LogLines
from fededge.transport.session import Session
from fededge_server.identity import Identity
from fededge_server.machine.rounds.rollout import Staging
from fededge_server.machine.rounds.round_state import RoundsView
from fededge_server.machine.rounds.rounds import Rounds
from fededge_server.model.merging import Merging
from fededge_server.model.publisher import Publisher
from fededge_server.model.versions import Versions
from fededge_server.state_message import StateMessage
from fededge_server.store import Store
from fededge_server.version_judge import VersionJudge

__all__ = ["CoordinatorParts"]


@dataclass(eq=False)
class CoordinatorParts:
    """All open or ready to start; `new_settings.take_effect` alone changes them.

    `lines`: the log, at a bounded rate.

    `watch` sees each event before it is handled, and each command before it is carried out.
    """

    config: CoordinatorConfig
    identity: Identity
    session: Session
    store: Store
    versions: Versions
    rounds: Rounds
    staging: Staging | None
    merging: Merging
    judge: VersionJudge
    publisher: Publisher
    message: StateMessage
    clock: Callable[[], float]
    wall: Callable[[], float]
    lines: LogLines
    watch: Callable[[object], None] = unwatched

    @property
    def view(self) -> RoundsView:
        """The rounds as they stand now."""
        return self.rounds.view(self.clock())
