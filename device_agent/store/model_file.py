"""The file of a model in the agent's folder: the agent and its trainer read it alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fededge.errors import WireError
from fededge.flat import Vector
from fededge.storage.files import stream_sha256
from fededge_agent.store.index import StoredFile

__all__ = ["Reader", "is_intact", "model_path", "read_vectors"]

Reader = Callable[[BinaryIO], dict[str, Vector]]
"""Reads the vectors of a model's file; raises WireError if it is invalid."""


def model_path(folder: Path, version: str) -> Path:
    return folder / f"{version}.safetensors"


def is_intact(folder: Path, file: StoredFile) -> bool:
    """True if a file of the store has its SHA-256."""
    try:
        with (folder / file.name).open("rb") as opened:
            return stream_sha256(opened) == file.sha256
    except OSError:
        return False


def read_vectors(path: Path, read: Reader) -> dict[str, Vector]:
    """The vectors of a model's file; WireError if it cannot be read: it can be had again."""
    try:
        with path.open("rb") as file:
            return read(file)
    except OSError as error:
        raise WireError(f"{path}: cannot be read ({error.strerror})") from None
