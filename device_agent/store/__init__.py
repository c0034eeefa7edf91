"""The agent's files: the held model, private state, and the last update."""

from __future__ import annotations

from fededge_agent.store.store import AgentStore, Turn

__all__ = ["AgentStore", "Turn"]
