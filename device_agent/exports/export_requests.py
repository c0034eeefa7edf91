"""Requests to the exporter, and the personal models that they name: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fededge.export import Origin
from fededge.wire.messages import Rollout
from fededge_agent.exports.significance import Right

__all__ = ["ExportRequest", "ModelExporter", "PersonalModel", "ScoreRequest"]


@dataclass(frozen=True)
class PersonalModel:
    """A personal model that waits for its export: its files, and its origin."""

    file: Path
    template: Path
    origin: Origin


@dataclass(frozen=True)
class ExportRequest:
    """Export this model, and offer it for promotion under this rollout."""

    model: PersonalModel
    run: str
    rollout: Rollout | None


@dataclass(frozen=True)
class ScoreRequest:
    """Measure a model, by its number or its file's bytes, on the device's held-out data.

    The answer says for each example whether the model is right; None without such data.
    """

    model: int | bytes


class ModelExporter(Protocol):
    """The exporter, wherever it is. The constructor only stores; requests start it, too."""

    def start(self) -> None: ...
    def export(self, request: ExportRequest) -> None: ...
    def score(self, model: int | bytes) -> Right | None: ...
    def stop(self) -> None: ...
