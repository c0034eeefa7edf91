"""The trainer process itself: answers the agent's requests until the agent is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from fededge._internal import logs
from fededge._internal.torch_process import RemoteError, report_progress
from fededge.errors import FedEdgeError
from fededge.hardware.priority import Priority, apply
from fededge_agent.requests import (
    AbandonRequest,
    ExpectRequest,
    HandOverRequest,
    MeasureRequest,
    PrepareRequest,
    Request,
    StoppedError,
    TrainRequest,
)
from fededge_agent.trainer.turns import DeviceTurns

__all__ = ["serve"]

log = logging.getLogger("agent")

OOM_SCORE = "500"
"""Added to the process's share of memory, in thousandths: the OOM killer takes it, not the agent.
"""


def serve(connection: Connection) -> None:
    """Take requests from the connection; the process ends when the agent closes it, or dies."""
    with contextlib.suppress(OSError):  # Linux has it
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    with contextlib.suppress(EOFError, OSError):
        config = connection.recv()
        logs.set_up()
        apply(Priority(**msgspec.structs.asdict(config.hardware.priority)))
        turns = DeviceTurns(config, report_progress(connection))
        connection.send(_answer(turns, None))
        Requests(connection, turns).answer_all()


class Requests:
    """Reads the connection in a thread of its own: an abandoned turn need not end first."""

    def __init__(self, connection: Connection, turns: DeviceTurns) -> None:
        self.connection = connection
        self.turns = turns
        self.waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()

    def answer_all(self) -> None:
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        while True:
            self.connection.send(_answer(self.turns, self.waiting.get()))

    def _read(self) -> None:
        try:
            while True:
                request = self.connection.recv()
                if isinstance(request, AbandonRequest):
                    self.turns.abandon()
                elif isinstance(request, ExpectRequest):
                    self.turns.expect()
                else:
                    self.waiting.put(request)
        except (EOFError, OSError):
            os._exit(0)  # at once: the next agent may be waiting for the folder


def _answer(turns: DeviceTurns, request: Request | None) -> object:
    """The answer to a request, which may be an error; None stands for the start."""
    try:
        return _result(turns, request)
    except (FedEdgeError, StoppedError) as error:
        return error
    except Exception as error:
        what = "the start" if request is None else type(request).__name__
        log.exception("%s", what, extra={"event": "job-failed"})
        return RemoteError(f"{type(error).__name__}: {error}")


def _result(turns: DeviceTurns, request: Request | None) -> object:
    match request:
        case PrepareRequest(state, export):
            return turns.prepare(state, export)
        case TrainRequest(state, index):
            return turns.train(state, index)
        case HandOverRequest():
            return turns.hand_over()
        case MeasureRequest():
            turns.measure()
        case None:
            turns.start()
    return None
