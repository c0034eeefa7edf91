"""The export loop: a personal model that is not worse than the current one replaces it, as ONNX."""

from __future__ import annotations

import logging
import math
from datetime import datetime, timezone
from pathlib import Path

from fededge.config import AgentConfig
from fededge.errors import ExportError
from fededge.export import Models, Origin, Template
from fededge.spec import ModelSpec
from fededge.training import Answer, Trainer
from fededge.wire.messages import State, TaskMessage

__all__ = ["Exporting"]

log = logging.getLogger("agent")

COMPARED = 256
"""Images on which an exported model is compared with torch."""


class Exporting:
    """The exported models of one device: `<state>/models/current/model.onnx`."""

    def __init__(self, config: AgentConfig, spec: ModelSpec, trainer: Trainer) -> None:
        self.config = config
        self.spec = spec
        self.trainer = trainer
        self.models = Models(Path(config.state) / "models")

    def warm_up(self) -> None:
        """Trace the network, which takes seconds, before the first round instead of in it."""
        folder = Path(self.config.state) / "templates"
        self.net = self.trainer.deployed.clone()
        try:
            self.template: Template | None = Template.cached(folder, self.net.module, self.spec)
        except ExportError as error:
            self.template = None
            log.warning("there will be no ONNX model: %s", error)

    def publish(self, answer: Answer, task: TaskMessage, state: State) -> None:
        """Export the personal model, unless the current one does better on our held-out data."""
        if self.template is None:
            return
        accuracy = answer.personal_accuracy
        current = self.models.current()
        if current is not None and current.accuracy is not None and accuracy < current.accuracy:
            log.info("personal model %.1f%%: the current one stays", 100 * accuracy)
            return
        self.net.load(answer.personal)
        data = self.trainer.data
        images = data.held_x if len(data.held_x) else data.x
        try:
            self.models.export(
                self.net, self.template, self._origin(answer, task, state), images[:COMPARED]
            )
        except ExportError as error:
            log.error("%s", error)
            return
        log.info("personal model %.1f%%: exported", 100 * accuracy)

    def _origin(self, answer: Answer, task: TaskMessage, state: State) -> Origin:
        accuracy = answer.personal_accuracy
        return Origin(
            federation=self.config.federation,
            device=self.config.device,
            method=state.method,
            version=task.version,
            round=task.round,
            accuracy=None if math.isnan(accuracy) else accuracy,
            created=datetime.now(timezone.utc),
        )
