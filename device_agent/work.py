"""What an agent does between messages: build, fetch, train, save, export. No MQTT here."""

from __future__ import annotations

import logging
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
from fededge.errors import ConfigError, LayoutError, WireError
from fededge.export import Models
from fededge.flat import FlatModel, as_numpy, as_tensors
from fededge.methods import Hyper, Method, Private
from fededge.methods.own import sha256_of
from fededge.models import Preprocess, build_for
from fededge.training import Answer, Examples, Task, Trainer
from fededge.wire import chunks, tensors
from fededge.wire.container import Sink
from fededge.wire.encoding import RESIDUE, Encoding
from fededge.wire.messages import Manifest, Report, State, TaskMessage
from fededge_agent.exporting import Exporting
from fededge_agent.metrics import Diary, turn_metrics
from fededge_agent.promotion import Promotion
from fededge_agent.store import AgentStore

__all__ = ["Trained", "Work"]

log = logging.getLogger("agent")


@dataclass(frozen=True, eq=False)
class Trained:
    """A turn that was taken and saved: what it was for, what it began with, what it gave."""

    task: TaskMessage
    state: State
    received: Tensor
    answer: Answer
    seconds: float


class Work:
    """A device's network, data and method, as the federation's state describes them."""

    def __init__(self, config: AgentConfig, store: AgentStore) -> None:
        self.config = config
        self.store = store
        self.own: list[type[Method]] = []
        self.data: Examples | None = None
        self.trainer: Trainer | None = None
        self.exporting: Exporting | None = None
        self.encoding = Encoding()
        self.diary = Diary(Path(config.state))
        models = Models(Path(config.state) / "models", config.export.keep)
        self.promotion = Promotion(models, config.device, config.export.margin, self._score)

    @property
    def layout_hash(self) -> str:
        return self.trainer.net.layout.hash if self.trainer else ""

    @property
    def examples(self) -> int:
        return len(self.data.y) if self.data else 0

    @property
    def scalars(self) -> frozenset[str]:
        return self._ready.method.scalars

    @property
    def most_bytes(self) -> int:
        """More than this cannot be a model of the federation."""
        vectors = 1 + len(self._ready.method.sends)
        return tensors.payload_limit(self._ready.net.layout, vectors)

    @property
    def _ready(self) -> Trainer:
        assert self.trainer is not None, "not prepared"
        return self.trainer

    def load_methods(self) -> None:
        """Import the files that the operator allows: before the federation has said a word."""
        self.own = [methods.own_method(reference) for reference in self.config.methods]
        for reference, kind in zip(self.config.methods, self.own, strict=True):
            log.info("method %s is %s, SHA-256 %s", kind.name, reference, sha256_of(kind))

    def prepare(self, state: State) -> None:
        """Build the network, load the data, and make everything warm before saying ready."""
        self.encoding = Encoding.parse(state.encoding)
        method = methods.announced(state.method, state.files, self.own)
        spec = state.model
        if self.config.model is not None:
            spec = msgspec.structs.replace(spec, name=self.config.model.name)
        try:
            net = FlatModel(build_for(spec, seed=0))
        except ConfigError as error:
            raise WireError(f"the federation's network cannot be built: {error}") from None
        method.needs(net.module)
        self.data = device_examples(self.config.data, spec)
        self.trainer = Trainer(self.config.device, net, Preprocess(spec), self.data, method)
        if net.layout.hash != state.layout:
            log.error("our layout %s is not the federation's %s", net.layout.hash, state.layout)
            return  # the coordinator refuses our status, with both hashes
        self.exporting = Exporting(self.config, spec, self.trainer, self.promotion)
        self.exporting.warm_up()
        log.info("ready: %d examples, network %s, method %s", self.examples, spec.name, method)

    def check_model(self, version: str, manifest: Manifest) -> None:
        self.store.check_model(version, manifest, self._read_model)

    def _read_model(self, file: BinaryIO) -> dict[str, Tensor]:
        trainer = self._ready
        with self.encoding.plain(file, self.most_bytes) as plain:
            found = tensors.decode(trainer.net.layout, plain, ("model", *trainer.method.sends))
        return as_tensors(found)

    def train(self, task: TaskMessage, state: State) -> Trained:
        """Take a turn, and save its update and private state together."""
        trainer = self._ready
        layout = trainer.net.layout
        if layout.hash != state.layout:
            raise LayoutError(f"our layout is {layout.hash}, the federation's {state.layout}")
        sent = self.store.model(task.version, self._read_model)
        received = sent.pop("model")
        hyper = Hyper(**msgspec.structs.asdict(state.training))
        before = self.store.private(state.run, lambda name: name != RESIDUE)
        start = time.monotonic()
        asked = Task(state.seed, task.round, hyper, received, sent, state.turns)
        answer = trainer.turn(asked, before)
        self._save(task, state, answer, received, before)
        return Trained(task, state, received, answer, time.monotonic() - start)

    def _save(
        self,
        task: TaskMessage,
        state: State,
        answer: Answer,
        received: Tensor,
        before: Private,
    ) -> None:
        """Private state, update and what follows it; the new residue takes the old one's place.

        That is read only now: the training has no need of it, and of its memory much.
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
            round=task.round,
            version=task.version,
            layout=layout.hash,
            manifest=chunks.manifest(path, state.manifest.chunk_bytes),
            scalars=answer.scalars,
        )
        self.store.save_turn(now, update, answer.private.including(RESIDUE, left), report)

    def _pack_(
        self, residue: Tensor | None, file: Sink, upload: Tensor, received: Tensor
    ) -> Tensor | None:
        """Write the update; the residue that is left takes the place of the one before."""
        before = None if residue is None else as_numpy(residue)
        left = self.encoding.write_(
            before, file, self._ready.net.layout, as_numpy(upload), as_numpy(received)
        )
        return None if left is None else torch.from_numpy(left)

    def _score(self, number: int) -> float | None:
        return None if self.exporting is None else self.exporting.score(number)

    def follow_up(self, trained: Trained) -> None:
        """What need not keep the update waiting: the personal model, and a row of metrics."""
        task, state = trained.task, trained.state
        if self.exporting is not None:
            self.exporting.publish(trained.answer, task, state)
        measured = turn_metrics(self._ready, trained.received, trained.answer)
        turn = {"round": task.round, "version": task.version, "seconds": round(trained.seconds, 3)}
        self.diary.add({**turn, **measured})
