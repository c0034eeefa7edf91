"""The coordinator's files: the journal, the models, and the spool of updates."""

from __future__ import annotations

from fededge_server.store.rows import NewSettings, score_of
from fededge_server.store.settings_tables import Role
from fededge_server.store.store import AWAKE, Change, CheckedUpdate, Progress, Store

__all__ = [
    "AWAKE",
    "Change",
    "CheckedUpdate",
    "NewSettings",
    "Progress",
    "Role",
    "Store",
    "score_of",
]
