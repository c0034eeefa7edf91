"""The handover of personal models to the exporter: their numbers, and torch's probabilities."""

from __future__ import annotations

import copy
import logging
import math
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch import Tensor

from fededge.config import AgentConfig
from fededge.errors import ExportError, StoreError
from fededge.export import Origin, Samples, Template, reference
from fededge.flat import FlatModel, as_numpy
from fededge.model_spec import ModelSpec
from fededge.training import Answer, Trainer
from fededge.wire.messages import State
from fededge_agent.exports.export_requests import PersonalModel
from fededge_agent.exports.handover_files import write_personal, write_samples
from fededge_agent.store import exports_folder

__all__ = ["Handover"]

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


class Handover:
    """Leaves the personal models of one device to its exporter, which has no torch."""

    def __init__(self, config: AgentConfig, spec: ModelSpec, trainer: Trainer) -> None:
        self.config = config
        self.spec = spec
        self.folder = exports_folder(Path(config.state))
        data, deployed = trainer.data, trainer.deployed
        self.net = FlatModel(copy.deepcopy(deployed.module).cpu(), trains=False)
        self.net.swap(deployed.vector)  # shares the trainer's vector between two exports
        inputs = data.held_x if len(data.held_x) else data.x
        count = COMPARED_NUMBERS // max(1, self.net.layout.size)
        self.compared = spread(inputs, max(LEAST_COMPARED, min(MOST_COMPARED, count)))
        self._template: Path | None = None
        self.samples = Samples(spread(data.x, CALIBRATED), data.held_x, data.held_y)

    def prepare(self) -> None:
        """Write the samples, and trace the network unless an earlier process has done so.

        Tracing takes seconds: before the first round instead of in it.
        """
        try:
            write_samples(self.folder, self.samples)
            self._traced()
        except (ExportError, StoreError) as error:
            log.warning("no ONNX model can be made: %s", error)

    def _traced(self) -> Path:
        """The template's file; the exporter removes one that does not give torch's numbers."""
        if self._template is None or not self._template.exists():
            folder = Path(self.config.state) / "templates"
            self._template = Template.cached_file(folder, self.net.module, self.spec)
        return self._template

    def give(self, number: int, answer: Answer, state: State) -> PersonalModel | None:
        """Write a personal model for the exporter; None, and a line in the log, if it cannot be."""
        before = self.net.swap(answer.personal)
        path = self.folder / f"{number}.personal"
        try:
            model = PersonalModel(path, self._traced(), self._origin(answer, state))
            expected = reference(self.net.module, self.spec, self.compared)
            write_personal(path, as_numpy(answer.personal), expected)
        except (ExportError, StoreError) as error:  # e.g. a full disk: the next turn tries again
            log.error("no personal model is exported: %s", error)
            return None
        finally:
            self.net.swap(before)
        return model

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
