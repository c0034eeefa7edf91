"""A device's turns, where torch is: build the network, train, write the turn's files, export."""

from __future__ import annotations

import functools
import gc
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch
from torch import Tensor, nn

from fededge import methods
from fededge.config import AgentConfig
from fededge.data.local import device_examples
from fededge.errors import ConfigError, WireError
from fededge.flat import FlatModel, Vector, as_numpy, as_tensors
from fededge.hardware import CPU, choose, examine
from fededge.method.plugins import sha256_of
from fededge.methods import Hyper, Method, Private
from fededge.model_spec import ModelSpec
from fededge.models import Preprocess, activation_counts, build_for
from fededge.training import (
    Answer,
    Examples,
    Task,
    Trainer,
    device_errors,
    prepare_threads,
    prepare_training,
    release_memory,
)
from fededge.wire.container import Sink
from fededge.wire.encoding import RESIDUE, Encoding
from fededge.wire.messages import Report, State
from fededge_agent.exports.export_requests import PersonalModel
from fededge_agent.requests import PreparedJob, StoppedError
from fededge_agent.store import PRIVATE, Index, TrainedTurn
from fededge_agent.trainer.handover import Handover
from fededge_agent.trainer.limits import Limits
from fededge_agent.trainer.metrics import Diary, turn_metrics, unmeasured
from fededge_agent.trainer.networks import allowed_network, load_networks
from fededge_agent.trainer.turn_files import TurnFiles
from fededge_agent.versions import read_version

__all__ = ["DeviceTurns", "FinishedTurn"]

log = logging.getLogger("agent")

MEASURED = 1.0
"""Seconds of the CPU's time that metrics may take while the next turn waits."""


@dataclass(frozen=True, eq=False)
class FinishedTurn:
    """A turn that was trained and written: its number, the model received, and the answer."""

    number: int
    state: State
    received: Tensor
    answer: Answer
    seconds: float


class DeviceTurns:
    """A device's network, data and method, as the federation's state describes them.

    The trainer process has one. Tests and the fault simulation have one in their own process.
    `progress` is called after every step, with the steps done and their total.
    """

    steps = (0, 0)  # only a process of its own reports them

    def __init__(
        self, config: AgentConfig, progress: Callable[..., None] = lambda *_: None
    ) -> None:
        self.config = config
        self.progress = progress
        self.folder = Path(config.state) / PRIVATE
        self.plugins: list[type[Method]] = []
        self.networks: list[str] = []
        self.hardware = CPU
        self.job: PreparedJob | None = None
        self.spec: ModelSpec | None = None
        self.trainer: Trainer | None = None
        self.finished: FinishedTurn | None = None  # its personal model is not handed over yet
        self.unmeasured: FinishedTurn | None = None
        self.encoding = Encoding()
        self.limits = Limits(config)
        self.abandoned = threading.Event()
        self.expected = threading.Event()  # a turn waits
        self.diary = Diary(Path(config.state))
        self._handover: Handover | None = None

    @property
    def prepared(self) -> bool:
        return self.job is not None

    @property
    def _ready(self) -> Trainer:
        assert self.trainer is not None, "not prepared"
        return self.trainer

    def start(self) -> None:
        """Check that the configured hardware works, and import the method files."""
        self.hardware = examine(*self._wish).hardware
        prepare_training(self.hardware)
        self.load_methods()

    @property
    def _wish(self) -> tuple[str, int, str, str]:
        wish = self.config.hardware
        return wish.device, wish.threads, wish.precision, wish.memory_format

    def stop(self) -> None:
        """Forget the network and the data, and free their memory; the next turn prepares again."""
        self.job = self.trainer = self._handover = self.finished = self.unmeasured = None
        if not self.hardware.on_cpu:  # the next choice looks at the GPU's free memory
            gc.collect()
            release_memory(torch.device(self.hardware.device))

    def load_methods(self) -> None:
        """Import the files of methods and networks that the operator allows."""
        self.plugins = [methods.plugin_method(reference) for reference in self.config.methods]
        for reference, kind in zip(self.config.methods, self.plugins, strict=True):
            log.info("method %s: %s, SHA-256 %s", kind.name, reference, sha256_of(kind))
        self.networks = load_networks(self.config)

    def prepare(self, state: State, export: bool = True) -> PreparedJob:
        """Build the network and load the data; with `export`, trace the network as well.

        Raises:
            FedEdgeError: if this device cannot serve the state; before memory is allocated for it.
        """
        self.stop()  # memory need not hold two networks
        self.encoding = Encoding.parse(state.encoding)
        method = methods.announced(state.method, state.files, self.plugins)
        self.spec, network, data = self._announced(state)
        self.hardware = choose(*self._wish, activation_counts(self.spec).macs)
        prepare_threads(self.hardware)
        net = FlatModel(network)
        method.needs(net.module)
        preprocess = Preprocess(self.spec)
        self.trainer = Trainer(self.config.device, net, preprocess, data, method, self.hardware)
        if export:
            _ = self.handover
        sends, examples = (*method.sends,), len(data.y)
        self.job = PreparedJob(net.layout, sends, method.scalars, examples, data.skipped)
        name = self.spec.name
        log.info("ready: %d examples, network %s, method %s", examples, name, method)
        return self.job

    @property
    def handover(self) -> Handover:
        """Made once: it traces the network, unless an earlier process has done so."""
        if self._handover is None:
            assert self.spec is not None, "not prepared"
            self._handover = Handover(self.config, self.spec, self._ready)
            self._handover.prepare()
        return self._handover

    def _announced(self, state: State) -> tuple[ModelSpec, nn.Module, Examples]:
        """The federation's network and our examples for it, if this device has the memory."""
        spec = allowed_network(state.model, self.config, self.networks)
        try:
            self.limits.check_network(spec, state.layout)
        except ConfigError as error:
            raise WireError(f"the federation's network cannot be built: {error}") from None
        data = device_examples(self.config.data, spec, self.limits.memory)
        self.limits.check_training(spec, state.training.batch_size, len(data.y))
        return spec, build_for(spec, seed=None), data  # a turn loads its values

    # A turn

    def expect(self) -> None:
        """A turn is about to come: whatever was abandoned was another one."""
        self.abandoned.clear()
        self.expected.set()

    def abandon(self) -> None:
        """Stop the training that is under way, at its next step."""
        self.abandoned.set()

    def train(self, state: State, index: Index) -> TrainedTurn:
        """Train, and write the update and the private state; the agent saves them together."""
        self._forget_last()
        self.expected.clear()
        files = TurnFiles(self.folder, index)
        sent = as_tensors(files.model(state.version, self._reader(state, index)))
        received = sent.pop("model")
        hyper = Hyper(**msgspec.structs.asdict(state.training))
        before = files.private(state.run, lambda name: name != RESIDUE)
        if index.renewed != state.renewed:
            before = self._ready.method.kept_anew(before)
        start = time.monotonic()
        asked = Task(state.seed, state.round, hyper, received, sent, state.turns)
        answer = self._ready.turn(asked, before, self._go_on)
        turn = self._write(files, state, answer, received, before)
        seconds = time.monotonic() - start
        finished = FinishedTurn(index.count + 1, state, received, answer, seconds)
        self.finished = self.unmeasured = finished
        return turn

    def _reader(self, state: State, index: Index) -> Callable[[BinaryIO], dict[str, Vector]]:
        """Reads the model; that of the index was checked when it was fetched."""
        assert self.job is not None, "not prepared"
        checked, version = state.version == index.held, state.version
        return functools.partial(read_version, self.job, self.encoding, version, checked=checked)

    def _go_on(self, done: int, total: int) -> None:
        """After every step: stop if the turn was abandoned."""
        self.progress(done, total)
        if self.abandoned.is_set():
            raise StoppedError

    def _write(
        self, files: TurnFiles, state: State, answer: Answer, received: Tensor, before: Private
    ) -> TrainedTurn:
        """Write private state and update; the new residue replaces the old one.

        The residue is loaded late to keep peak memory low.
        """
        trainer = self._ready
        _, residue = files.private(state.run, lambda name: name == RESIDUE).without(RESIDUE)
        at_once = trainer.method.kept_at_once(before, answer.private)
        now = files.write_private(at_once.including(RESIDUE, residue))
        left = residue

        def write(file: Sink) -> None:
            nonlocal left
            left = self._pack_(residue, file, answer.upload, received)

        update, payload = files.write_update(write, state.manifest.chunk_bytes)
        report = Report(
            device=self.config.device,
            run=state.run,
            version=state.version,
            layout=trainer.net.layout.hash,
            manifest=payload.facts,
            scalars=answer.scalars,
        )
        accepted = files.write_accepted(answer.private.including(RESIDUE, left))
        return TrainedTurn(report, update, now, accepted, state.renewed, payload.checksums)

    def _pack_(
        self, residue: Tensor | None, file: Sink, upload: Tensor, received: Tensor
    ) -> Tensor | None:
        """Write the update; the new residue overwrites the old one's memory."""
        before = None if residue is None else as_numpy(residue)
        left = self.encoding.write_(
            before, file, self._ready.net.layout, as_numpy(upload), as_numpy(received)
        )
        return None if left is None else torch.from_numpy(left)

    # After a turn

    def hand_over(self) -> PersonalModel | None:
        """Leave the personal model of the last turn to the exporter."""
        turn, self.finished = self.finished, None
        if turn is None:
            return None
        with device_errors(torch.device(self.hardware.device), "the export"):
            return self.handover.give(turn.number, turn.answer, turn.state)

    def measure(self) -> None:
        """Add a row of metrics for the last turn; what a waiting turn cuts short is NaN."""
        turn, self.unmeasured = self.unmeasured, None
        if turn is None:
            return
        ends = time.process_time() + MEASURED

        def go_on() -> None:
            if self.expected.is_set() and time.process_time() > ends:
                raise StoppedError

        try:
            with device_errors(torch.device(self.hardware.device), "the metrics"):
                measured = turn_metrics(self._ready, turn.received, turn.answer, go_on)
        except StoppedError:
            measured = unmeasured(turn.answer)
        self._note(turn, measured)

    def _forget_last(self) -> None:
        """The next turn begins: if the last one was not measured, its row says so."""
        turn, self.unmeasured, self.finished = self.unmeasured, None, None
        if turn is not None:
            self._note(turn, unmeasured(turn.answer))

    def _note(self, turn: FinishedTurn, measured: Mapping[str, float]) -> None:
        state, seconds = turn.state, round(turn.seconds, 3)
        self.diary.add(
            {"round": state.round, "version": state.version, "seconds": seconds, **measured}
        )
