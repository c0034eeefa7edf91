"""The agent's files: the held model, private state, and the last update."""

from __future__ import annotations

from fededge_agent.store.store import AgentStore, SavedTurn

__all__ = ["AgentStore", "SavedTurn"]
