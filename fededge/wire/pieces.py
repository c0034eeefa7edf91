"""Where chunks land: a file that is written piece by piece and read back whole."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from fededge.errors import WireError
from fededge.files import disk_error
from fededge.wire.messages import Manifest

__all__ = ["read_whole", "write_piece"]


def write_piece(path: Path, offset: int, data: bytes) -> None:
    """Put a piece in its place; pieces may come in any order and again."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            while data:
                written = os.pwrite(handle, data, offset)
                data, offset = data[written:], offset + written
        finally:
            os.close(handle)
    except OSError as error:
        raise disk_error(path, error) from None


def read_whole(path: Path, facts: Manifest) -> bytes:
    """All pieces, on disk for good, if they are what the manifest says."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != facts.bytes:
                raise WireError(f"it is not the {facts.bytes} bytes that its manifest says")
            data = file.read()
            if hashlib.sha256(data).hexdigest() != facts.sha256:
                raise WireError("its SHA-256 does not fit its manifest")
            os.fsync(file.fileno())
    except FileNotFoundError:
        raise WireError("no piece of it is there") from None
    except OSError as error:
        raise disk_error(path, error) from None
    return data
