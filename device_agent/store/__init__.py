"""The agent's files: the held model, private state, and the last update."""

from __future__ import annotations

from fededge_agent.store.index import Index, SavedTurn, StoredFile, TrainedTurn
from fededge_agent.store.model_file import Reader, is_intact, model_path, read_vectors
from fededge_agent.store.store import PRIVATE, AgentStore, exports_folder

__all__ = [
    "PRIVATE",
    "AgentStore",
    "Index",
    "Reader",
    "SavedTurn",
    "StoredFile",
    "TrainedTurn",
    "exports_folder",
    "is_intact",
    "model_path",
    "read_vectors",
]
