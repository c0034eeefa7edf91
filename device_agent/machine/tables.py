"""The transitions of all of the agent's machines, for the documentation."""

from __future__ import annotations

from fededge_agent.machine.download import DOWNLOAD
from fededge_agent.machine.export_schedule import EXPORT
from fededge_agent.machine.preparation import PREPARATION
from fededge_agent.machine.rest import REST
from fededge_agent.machine.transitions import markdown
from fededge_agent.machine.turn import TURN

__all__ = ["transitions_table"]


def transitions_table() -> str:
    """The transitions of the five machines as Markdown tables."""
    tables = [
        markdown("rest", REST),
        markdown("preparation", PREPARATION),
        markdown("download", DOWNLOAD),
        markdown("turn", TURN),
        markdown("export", EXPORT),
    ]
    return "\n\n".join(tables) + "\n"
