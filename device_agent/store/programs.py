"""The child processes that hold the lock of the agent's folder: programs as `module:function`."""

from __future__ import annotations

__all__ = ["EXPORTER", "TRAINER"]

TRAINER = "fededge_agent.trainer.serving:serve"
EXPORTER = "fededge_agent.exporter.serving:serve"
