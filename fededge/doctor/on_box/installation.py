"""Packages that a configuration needs beyond those that FedEdge itself needs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from fededge.config import AgentConfig
from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.subject import Subject

__all__ = ["packages"]

BY_SOURCE = {
    "folder": ("PIL", "fededge[vision]"),
    "tiny-imagenet": ("PIL", "fededge[vision]"),
}


def packages(subject: Subject) -> Iterator[Diagnosis]:
    """Import what the data source and the export need."""
    needed = [BY_SOURCE[source]] if (source := subject.config.data.source) in BY_SOURCE else []
    if isinstance(subject.config, AgentConfig):
        needed.append(("onnxruntime", "onnxruntime"))
    for module, package in needed:
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - a broken package fails with errors of any kind
            yield found("package-missing", f"{module} cannot be imported: {error}", package=package)
