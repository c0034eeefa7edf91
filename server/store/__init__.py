"""The coordinator's files: the journal, the models, and the spool of updates."""

from __future__ import annotations

from fededge_server.store.store import Change, CheckedUpdate, Progress, Store

__all__ = ["Change", "CheckedUpdate", "Progress", "Store"]
