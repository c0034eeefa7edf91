"""A device's exports: a personal model becomes an ONNX file, and is offered for promotion."""

from __future__ import annotations

import logging
from pathlib import Path

from fededge.config import AgentConfig
from fededge.credentials.signing_keys import read_signing_key
from fededge.errors import ExportError
from fededge.export import Candidate, ModelRegistry, Samples, Template, fill_candidate
from fededge.export.candidate import import_tools
from fededge.export.parity import as_array, probabilities
from fededge_agent.exports.export_requests import ExportRequest, PersonalModel
from fededge_agent.exports.handover_files import read_personal, read_samples
from fededge_agent.exports.promotion import Promotion
from fededge_agent.exports.significance import Right
from fededge_agent.store import exports_folder

__all__ = ["DeviceExports"]

log = logging.getLogger("agent")


class DeviceExports:
    """The exported models of one device: `<state>/models/current/model.onnx`.

    The exporter process has one. Tests have one in their own process.
    """

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.folder = exports_folder(Path(config.state))
        models = ModelRegistry(Path(config.state) / "models", config.export.keep)
        self.promotion = Promotion(models, config.device, config.export.margin, self.score)

    def export(self, request: ExportRequest) -> None:
        """Export a personal model, and offer it for promotion."""
        self.promotion.run, self.promotion.rollout = request.run, request.rollout
        model, template = request.model, Template.load(request.model.template)
        candidate = self._candidate(model, template)
        weights = [entry.name for entry in template.layout.entries]
        outcome = self.promotion.offer(candidate, lambda made: self._complete(made, weights))
        accuracy = model.origin.accuracy
        measured = "" if accuracy is None else f" {accuracy:.1%}"
        log.info("personal model of round %d%s: %s", model.origin.round + 1, measured, outcome)

    def _candidate(self, model: PersonalModel, template: Template) -> Candidate:
        """The float32 model; a template that does not give torch's numbers is traced again."""
        vector, expected = read_personal(model.file)
        try:
            return fill_candidate(template, vector, model.origin, expected)
        except ExportError:
            model.template.unlink(missing_ok=True)
            raise

    def score(self, model: int | bytes) -> Right | None:
        """Measure a model on the data that is held out now; its manifest may be older."""
        samples = read_samples(self.folder)
        if not len(samples.held_y):
            return None
        file = self.promotion.models.path(model) / "model.onnx" if isinstance(model, int) else model
        try:
            found = probabilities(file, as_array(samples.held_x))
        except ExportError as error:
            name = model if isinstance(model, int) else "(new)"
            log.warning("model %s cannot be measured: %s", name, error)
            return None
        right: list[bool] = (found.argmax(1) == as_array(samples.held_y)).tolist()
        return right

    def start(self) -> None:
        """Import what exports need: the first one is as quick as the others."""
        import_tools(self.config.export.made)

    def stop(self) -> None:
        """Nothing to do: the exporter keeps nothing between two requests."""

    def _complete(self, candidate: Candidate, weights: list[str]) -> Candidate:
        """Add the variants, choose among them, and sign."""
        config = self.config.export
        if config.made:
            samples: Samples = read_samples(self.folder)
            candidate = candidate.with_variants(config.made, weights, samples)
        candidate = candidate.preferring(config.prefer, config.max_drop)
        key = config.signing_key
        return candidate.signed(read_signing_key(Path(key))) if key else candidate
