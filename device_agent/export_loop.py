"""The export loop: a personal model that is not worse than the current one replaces it, as ONNX."""

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
"""Samples on which an exported model is compared with torch: the fewer, the larger it is."""

COMPARED_NUMBERS = 4_000_000
"""Numbers of the model times samples, about: the comparison takes as long for every network."""

CALIBRATED = 256
"""Training samples on which the activations of an int8 model are measured."""


def spread(inputs: Tensor, count: int) -> Tensor:
    """So many of the inputs, evenly from first to last: a folder's come class after class."""
    if len(inputs) <= count:
        return inputs
    return inputs[torch.arange(count) * len(inputs) // count]


class Exporting:
    """The exported models of one device: `<state>/models/current/model.onnx`."""

    def __init__(
        self, config: AgentConfig, spec: ModelSpec, trainer: Trainer, promotion: Promotion
    ) -> None:
        self.config = config
        self.spec = spec
        self.trainer = trainer
        self.promotion = promotion
        self.scores: dict[str, float | None] = {}
        signing_key = config.export.signing_key
        self.key = read_signing_key(Path(signing_key)) if signing_key else None

    def warm_up(self) -> None:
        """Trace the network, which takes seconds, before the first round instead of in it."""
        folder = Path(self.config.state) / "templates"
        deployed = self.trainer.deployed
        self.net = FlatModel(copy.deepcopy(deployed.module), trains=False)
        self.net.swap(deployed.vector)  # between two exports it need not have a model of its own
        try:
            self.template: Template | None = Template.cached(folder, self.net.module, self.spec)
        except ExportError as error:
            self.template = None
            log.warning("there will be no ONNX model: %s", error)

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
        except (ExportError, StoreError) as error:  # a full disk is one: the next turn tries again
            log.error("%s", error)
            return
        finally:
            self.net.swap(before)
        log.info("personal model %.1f%%: %s", 100 * answer.personal_accuracy, outcome)

    def score(self, number: int) -> float | None:
        """The accuracy of a model on what is held out now; its manifest may tell of other data."""
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
        """The variants, the choice among them, and the signature."""
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
