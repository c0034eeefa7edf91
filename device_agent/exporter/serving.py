"""The exporter process itself: answers the agent's requests until the agent is gone."""

from __future__ import annotations

import contextlib
import logging
from multiprocessing.connection import Connection
from pathlib import Path

from fededge._internal import logs
from fededge._internal.malloc import return_free_memory
from fededge._internal.torch_process import RemoteError
from fededge.config import AgentConfig
from fededge.errors import FedEdgeError
from fededge.hardware.priority import Priority, apply
from fededge_agent.exporter.exports import DeviceExports
from fededge_agent.exports.export_requests import ExportRequest, ScoreRequest

__all__ = ["serve"]

log = logging.getLogger("agent")

OOM_SCORE = "700"
"""Added to the process's share of memory, in thousandths: it goes before trainer and agent."""

NICE = 10
"""Behind all training on the box, and still so much that an export ends."""


def serve(connection: Connection) -> None:
    """Take requests from the connection; the process ends when the agent closes it, or dies."""
    with contextlib.suppress(OSError):  # Linux has it
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    return_free_memory()
    with contextlib.suppress(EOFError, OSError):
        config, level = connection.recv()
        logs.set_up(level <= logging.DEBUG)
        apply(_priority(config))
        exports = DeviceExports(config)
        exports.start()
        while True:
            connection.send(_answer(exports, connection.recv()))


def _priority(config: AgentConfig) -> Priority:
    wish = config.hardware.priority
    return Priority(nice=max(NICE, wish.nice), ionice=wish.ionice or "idle")


def _answer(exports: DeviceExports, request: ExportRequest | ScoreRequest) -> object:
    """The answer to a request, which may be an error."""
    try:
        if isinstance(request, ScoreRequest):
            return exports.score(request.model)
        exports.export(request)
    except FedEdgeError as error:
        return error
    except Exception as error:
        log.exception("%s", type(request).__name__, extra={"event": "export-failed"})
        return RemoteError(f"{type(error).__name__}: {error}")
    return None
