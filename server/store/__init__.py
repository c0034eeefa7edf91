"""The coordinator's files: the journal, the models, and the spool of updates."""

from __future__ import annotations

from fededge_server.store.store import CheckedUpdate, Progress, Store

__all__ = ["CheckedUpdate", "Progress", "Store"]
