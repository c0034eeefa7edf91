"""A version of the global model, read from its file: the agent and its trainer do it alike."""

from __future__ import annotations

from typing import BinaryIO

from fededge.errors import WireError
from fededge.flat import Vector
from fededge.wire import tensors
from fededge.wire.encoding import Encoding
from fededge_agent.requests import PreparedJob

__all__ = ["read_version"]


def read_version(
    job: PreparedJob, encoding: Encoding, version: str, file: BinaryIO, checked: bool = False
) -> dict[str, Vector]:
    """The vectors of a version; its name must end with the hash of its numbers.

    Args:
        checked: it does: the file has the SHA-256 that it had when that was checked.
    """
    with encoding.decompressed(file, job.most_bytes) as plain:
        found = tensors.decode(job.layout, plain, ("model", *job.sends))
    if not checked and not version.endswith(job.layout.sha256(found["model"])[:16]):
        raise WireError(f"its numbers are not those of version {version}")
    return found
