"""Runs a device's turns: build the network, train, save, export. No MQTT here."""

from __future__ import annotations

import functools
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch
from torch import Tensor

from fededge import methods
from fededge.config import AgentConfig
from fededge.data.local import device_examples
from fededge.errors import ConfigError, WireError
from fededge.export import ModelRegistry
from fededge.flat import FlatModel, as_numpy, as_tensors
from fededge.method.plugins import sha256_of
from fededge.methods import Hyper, Method, Private
from fededge.model_spec import ModelSpec
from fededge.models import Classifier, Preprocess, build_for
from fededge.storage.source import FileSource
from fededge.training import Answer, Examples, Task, Trainer
from fededge.wire import chunks, tensors
from fededge.wire.container import Sink
from fededge.wire.encoding import RESIDUE, Encoding
from fededge.wire.messages import Manifest, Report, State
from fededge_agent.export_loop import Exporting
from fededge_agent.limits import Limits
from fededge_agent.metrics import Diary, turn_metrics
from fededge_agent.promotion import Promotion
from fededge_agent.store import AgentStore

__all__ = ["FinishedTurn", "StoppedError", "TurnRunner"]

log = logging.getLogger("agent")


@dataclass(frozen=True, eq=False)
class FinishedTurn:
    """A turn that was trained and saved: its state, the model received, and the answer."""

    state: State
    received: Tensor
    answer: Answer
    seconds: float


class StoppedError(Exception):
    """A training was abandoned between two steps."""


class TurnRunner:
    """A device's network, data and method, as the federation's state describes them."""

    def __init__(self, config: AgentConfig, store: AgentStore) -> None:
        self.config = config
        self.store = store
        self.own: list[type[Method]] = []
        self.data: Examples | None = None
        self.trainer: Trainer | None = None
        self.exporting: Exporting | None = None
        self.encoding = Encoding()
        self.limits = Limits(config)
        self.abandon = threading.Event()
        self.diary = Diary(Path(config.state))
        models = ModelRegistry(Path(config.state) / "models", config.export.keep)
        self.promotion = Promotion(models, config.device, config.export.margin, self._score)

    @property
    def layout_hash(self) -> str:
        trainer = self.trainer  # read once: the worker thread may replace it
        return trainer.net.layout.hash if trainer else ""

    @property
    def examples(self) -> int:
        data = self.data
        return len(data.y) if data else 0

    @property
    def scalars(self) -> frozenset[str]:
        return self._ready.method.scalars

    @property
    def most_bytes(self) -> int:
        """The largest size that a model of the federation can have."""
        vectors = 1 + len(self._ready.method.sends)
        return tensors.payload_limit(self._ready.net.layout, vectors)

    @property
    def net(self) -> FlatModel:
        return self._ready.net

    @property
    def _ready(self) -> Trainer:
        assert self.trainer is not None, "not prepared"
        return self.trainer

    def load_methods(self) -> None:
        """Import the method files that the operator allows, before any message arrives."""
        self.own = [methods.own_method(reference) for reference in self.config.methods]
        for reference, kind in zip(self.config.methods, self.own, strict=True):
            log.info("method %s: %s, SHA-256 %s", kind.name, reference, sha256_of(kind))

    def prepare(self, state: State) -> None:
        """Build the network, load the data and warm up the export.

        Raises:
            FedEdgeError: if this device cannot serve the state; before memory is allocated for it.
        """
        self.trainer = self.exporting = self.data = None  # memory need not hold two networks
        encoding = Encoding.parse(state.encoding)
        method = methods.announced(state.method, state.files, self.own)
        spec, network, data = self._announced(state)
        net = FlatModel(network)
        method.needs(net.module)
        trainer = Trainer(self.config.device, net, Preprocess(spec), data, method)
        exporting = Exporting(self.config, spec, trainer, self.promotion)
        self.encoding, self.data = encoding, data
        self.trainer, self.exporting = trainer, exporting
        log.info("ready: %d examples, network %s, method %s", self.examples, spec.name, method)

    def _announced(self, state: State) -> tuple[ModelSpec, Classifier, Examples]:
        """The federation's network and our examples for it, if this device has the memory."""
        spec = state.model
        if self.config.model is not None:
            spec = msgspec.structs.replace(spec, name=self.config.model.name)
        try:
            self.limits.check_network(spec, state.layout)
        except ConfigError as error:
            raise WireError(f"the federation's network cannot be built: {error}") from None
        data = device_examples(self.config.data, spec, self.limits.memory)
        self.limits.check_training(spec, state.training.batch_size, len(data.y))
        return spec, build_for(spec, seed=0), data

    def check_model(self, version: str, manifest: Manifest) -> None:
        self.store.check_model(version, manifest, functools.partial(self._read_version, version))

    def _read_version(self, version: str, file: BinaryIO) -> dict[str, Tensor]:
        """The vectors of a version; its name must end with the hash of its numbers."""
        found = self._read_model(file)
        sha256 = self.net.layout.sha256(found["model"])
        if not version.endswith(sha256[:16]):
            raise WireError(f"its numbers are not those of version {version}")
        return found

    def _read_model(self, file: BinaryIO) -> dict[str, Tensor]:
        trainer = self._ready
        with self.encoding.decompressed(file, self.most_bytes) as plain:
            found = tensors.decode(trainer.net.layout, plain, ("model", *trainer.method.sends))
        return as_tensors(found)

    def train(self, state: State) -> FinishedTurn:
        """Train, and save the update and the private state together."""
        trainer = self._ready
        read = functools.partial(self._read_version, state.version)
        sent = self.store.model(state.version, read)
        received = sent.pop("model")
        hyper = Hyper(**msgspec.structs.asdict(state.training))
        before = self.store.private(state.run, lambda name: name != RESIDUE)
        start = time.monotonic()
        asked = Task(state.seed, state.round, hyper, received, sent, state.turns)
        answer = trainer.turn(asked, before, self._go_on)
        self._save(state, answer, received, before)
        return FinishedTurn(state, received, answer, time.monotonic() - start)

    def _go_on(self, *_: object) -> None:
        """After every step: stop if the turn was abandoned."""
        if self.abandon.is_set():
            raise StoppedError

    def _save(self, state: State, answer: Answer, received: Tensor, before: Private) -> None:
        """Save private state and update; the new residue replaces the old one.

        The residue is loaded late to keep peak memory low.
        """
        trainer = self._ready
        layout = trainer.net.layout
        _, residue = self.store.private(state.run, lambda name: name == RESIDUE).without(RESIDUE)
        at_once = trainer.method.kept_at_once(before, answer.private)
        now = self.store.write_private(at_once.including(RESIDUE, residue))
        left = residue

        def write(file: Sink) -> None:
            nonlocal left
            left = self._pack_(residue, file, answer.upload, received)

        update, path = self.store.write_update(write)
        report = Report(
            device=self.config.device,
            run=state.run,
            version=state.version,
            layout=layout.hash,
            manifest=chunks.manifest(FileSource(path), state.manifest.chunk_bytes),
            scalars=answer.scalars,
        )
        self.store.save_turn(now, update, answer.private.including(RESIDUE, left), report)

    def _pack_(
        self, residue: Tensor | None, file: Sink, upload: Tensor, received: Tensor
    ) -> Tensor | None:
        """Write the update; the new residue overwrites the old one's memory."""
        before = None if residue is None else as_numpy(residue)
        left = self.encoding.write_(
            before, file, self._ready.net.layout, as_numpy(upload), as_numpy(received)
        )
        return None if left is None else torch.from_numpy(left)

    def _score(self, number: int) -> float | None:
        return None if self.exporting is None else self.exporting.score(number)

    def follow_up(self, finished: FinishedTurn) -> None:
        """Export the personal model and add a row of metrics, after the update is reported."""
        state = finished.state
        if self.exporting is not None:
            self.exporting.publish(finished.answer, state)
        measured = turn_metrics(self._ready, finished.received, finished.answer)
        turn = {
            "round": state.round,
            "version": state.version,
            "seconds": round(finished.seconds, 3),
        }
        self.diary.add({**turn, **measured})
