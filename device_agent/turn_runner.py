"""Runs a device's turns from the agent's process: it has no torch, its trainer has.

The trainer writes the files of a turn; this process puts them into the index. So a turn is saved as
a whole or not at all, whichever process dies.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import BinaryIO

from fededge._internal.torch_process import RemoteError
from fededge.config import AgentConfig
from fededge.errors import FedEdgeError, ProcessDiedError
from fededge.flat import Vector
from fededge.storage.source import FileSource
from fededge.wire.encoding import Encoding
from fededge.wire.messages import Manifest, Report, State
from fededge.wire.source import Source
from fededge_agent.exports.export_requests import PersonalModel
from fededge_agent.requests import PreparedJob, TurnTrainer
from fededge_agent.store import AgentStore
from fededge_agent.versions import read_version

__all__ = ["TurnRunner"]


class TurnRunner:
    """A device's trainer, and the facts about the job that it prepared.

    `foresee`: the bytes that have left, by field, once an update has.
    The facts stay when the trainer is stopped. The worker's thread calls; the loop's thread reads
    the facts, checks models, and calls `expect` and `abandon`.
    """

    def __init__(self, config: AgentConfig, store: AgentStore, trainer: TurnTrainer) -> None:
        self.config = config
        self.store = store
        self.trainer = trainer
        self.job: PreparedJob | None = None
        self.state: State | None = None
        self.encoding = Encoding()
        self.foresee: Callable[[Report, Source], Mapping[str, int]] = lambda *_: store.ledger

    @property
    def layout_hash(self) -> str:
        job = self.job  # read once: the worker thread may replace it
        return job.layout.hash if job else ""

    @property
    def examples(self) -> int:
        job = self.job
        return job.examples if job else 0

    @property
    def steps(self) -> tuple[int, int]:
        """The steps of the turn that are done, and their total; zeros if that is not known."""
        return self.trainer.steps

    @property
    def flaw(self) -> str:
        """A flaw of the data with which the device takes part all the same; empty if none."""
        skipped = self.job.skipped if self.job else 0
        if not skipped:
            return ""
        return f"files of the device's data that cannot be read: {skipped}; its own log names them"

    @property
    def scalars(self) -> frozenset[str]:
        return self._ready.scalars

    @property
    def most_bytes(self) -> int:
        return self._ready.most_bytes

    @property
    def _ready(self) -> PreparedJob:
        assert self.job is not None, "not prepared"
        return self.job

    def start(self, resting: bool = False) -> None:
        """Start the trainer; wait for it only if it has files or hardware to check.

        A person who reads the error is there at the start only. On a box that rests the trainer
        runs for this check alone.
        """
        if resting and not self._to_be_checked:
            return
        self.trainer.start()
        if self._to_be_checked:
            self.trainer.load_methods()
        if resting:
            self.trainer.stop()

    @property
    def _to_be_checked(self) -> bool:
        hardware = self.config.hardware
        named = hardware.device not in ("auto", "cpu") or hardware.precision != "float32"
        return named or bool(self.config.methods or self.config.networks)

    def stop(self) -> None:
        """End the trainer: its memory is free until the next turn."""
        self.trainer.stop()

    def warm_up(self) -> None:
        """A turn is about to come: start the trainer, so that torch is there in time."""
        if self.state is not None:
            with contextlib.suppress(ProcessDiedError):  # the turn will say so
                self.trainer.start()

    def prepare(self, state: State) -> None:
        """Have the trainer build the network, load the data and trace the network.

        Raises:
            FedEdgeError: if this device cannot serve the state.
        """
        self.job = self.state = None
        self.encoding = Encoding.parse(state.encoding)
        self.job = self.trainer.prepare(state)
        self.state = state

    def wake(self, state: State) -> None:
        """Prepare a trainer that was stopped, or died; the first export traces the network."""
        if not self.trainer.prepared:
            self.job = self.trainer.prepare(state, export=False)

    def check_model(self, version: str, manifest: Manifest) -> None:
        """Check a downloaded model and make it the held one; WireError if it is damaged."""
        self.store.check_model(version, manifest, functools.partial(self._read, version))

    def _read(self, version: str, file: BinaryIO) -> dict[str, Vector]:
        return read_version(self._ready, self.encoding, version, file)

    def expect(self) -> None:
        self.trainer.expect()

    def abandon(self) -> None:
        """Stop the training that is under way, at its next step."""
        self.trainer.abandon()

    def train(self, state: State) -> None:
        """Train, and save the update and the private state together; the trainer is prepared."""
        index = self.store.begin_turn()
        try:
            turn = self.trainer.train(state, index)
        except (FedEdgeError, RemoteError):
            self.store.drop_turn()
            raise
        update = FileSource(self.store.folder / turn.update.name)
        self.store.save_turn(turn, self.foresee(turn.report, update))

    def hand_over(self) -> PersonalModel | None:
        """The turn's personal model, for the exporter; call it after the update is reported."""
        return self.trainer.hand_over()

    def measure(self) -> None:
        """Add a row of metrics for the turn."""
        self.trainer.measure()
