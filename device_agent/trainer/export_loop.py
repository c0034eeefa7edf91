"""The export loop: the personal model becomes an ONNX file, and is offered for promotion."""

from __future__ import annotations

import copy
import logging
import math
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch import Tensor

from fededge.config import AgentConfig
from fededge.credentials.signing_keys import read_signing_key
from fededge.errors import ExportError, StoreError
from fededge.export import Candidate, Origin, Samples, Template, make_candidate, predict_all
from fededge.flat import FlatModel
from fededge.model_spec import ModelSpec
from fededge.training import Answer, Trainer
from fededge.wire.messages import State
from fededge_agent.promotion import Promotion

__all__ = ["Exporting"]

log = logging.getLogger("agent")

LEAST_COMPARED, MOST_COMPARED = 16, 64
"""Samples on which an exported model is compared with torch: fewer for larger models."""

COMPARED_NUMBERS = 4_000_000
"""Parameters times samples, about: the comparison takes equally long for every network."""

CALIBRATED = 256
"""Training samples that calibrate the activations of an int8 model."""


def spread(inputs: Tensor, count: int) -> Tensor:
    """`count` of the inputs, evenly spaced: a folder is read class after class."""
    if len(inputs) <= count:
        return inputs
    return inputs[torch.arange(count) * len(inputs) // count]


class Exporting:
    """The exported models of one device: `<state>/models/current/model.onnx`."""

    def __init__(
        self, config: AgentConfig, spec: ModelSpec, trainer: Trainer, promotion: Promotion
    ) -> None:
        """Trace the network, which takes seconds, before the first round instead of in it."""
        self.config = config
        self.trainer = trainer
        self.promotion = promotion
        self.scores: dict[str, float | None] = {}
        signing_key = config.export.signing_key
        self.key = read_signing_key(Path(signing_key)) if signing_key else None
        deployed = trainer.deployed
        self.net = FlatModel(copy.deepcopy(deployed.module).cpu(), trains=False)
        self.net.swap(deployed.vector)  # shares the trainer's vector between two exports
        self.template = _template(Path(config.state) / "templates", self.net, spec)

    def publish(self, answer: Answer, state: State) -> None:
        """Export the personal model, and offer it for promotion."""
        if self.template is None:
            return
        data = self.trainer.data
        inputs = data.held_x if len(data.held_x) else data.x
        count = COMPARED_NUMBERS // max(1, self.template.layout.size)
        inputs = spread(inputs, max(LEAST_COMPARED, min(MOST_COMPARED, count)))
        before = self.net.swap(answer.personal)
        try:
            candidate = make_candidate(self.net, self.template, self._origin(answer, state), inputs)
            outcome = self.promotion.offer(candidate, self._complete)
        except (ExportError, StoreError) as error:  # e.g. a full disk: the next turn tries again
            log.error("%s", error, extra={"event": "promotion-failed"})
            return
        finally:
            self.net.swap(before)
        log.info("personal model %.1f%%: %s", 100 * answer.personal_accuracy, outcome)

    def score(self, number: int) -> float | None:
        """The accuracy of a model on the data that is held out now; its manifest may be older."""
        models, data = self.promotion.models, self.trainer.data
        weights = models.manifest(number).weights
        if weights not in self.scores and len(data.held_y):
            try:
                answers = predict_all(models.path(number) / "model.onnx", data.held_x)
            except ExportError as error:
                log.warning("model %d cannot be measured: %s", number, error)
                return None
            self.scores = {weights: (answers.argmax(1) == data.held_y).double().mean().item()}
        return self.scores.get(weights)

    def _complete(self, candidate: Candidate) -> Candidate:
        """Add the variants, choose among them, and sign."""
        assert self.template is not None
        config, data = self.config.export, self.trainer.data
        if config.made:
            weights = [entry.name for entry in self.template.layout.entries]
            samples = Samples(spread(data.x, CALIBRATED), data.held_x, data.held_y)
            candidate = candidate.with_variants(config.made, weights, samples)
        candidate = candidate.preferring(config.prefer, config.max_drop)
        return candidate if self.key is None else candidate.signed(self.key)

    def _origin(self, answer: Answer, state: State) -> Origin:
        accuracy = answer.personal_accuracy
        return Origin(
            federation=self.config.federation,
            device=self.config.device,
            method=state.method,
            run=state.run,
            version=state.version,
            round=state.round,
            accuracy=None if math.isnan(accuracy) else accuracy,
            created=datetime.now(timezone.utc),
        )


def _template(folder: Path, net: FlatModel, spec: ModelSpec) -> Template | None:
    try:
        return Template.cached(folder, net.module, spec)
    except ExportError as error:
        log.warning("no ONNX model can be made: %s", error)
        return None
