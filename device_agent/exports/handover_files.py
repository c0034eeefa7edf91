"""Files by which the trainer hands personal models over to the exporter; read without torch.

They lie in a folder of the agent's own, are not synced, and are gone when the agent is: a turn
makes them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fededge.errors import StoreError, WireError
from fededge.export import Reference, Samples
from fededge.export.parity import Array, as_array
from fededge.flat import Vector
from fededge.storage.files import replacing
from fededge.wire.container import Archive, from_array, storage_dtype, write

__all__ = ["read_personal", "read_samples", "samples_file", "write_personal", "write_samples"]

LARGEST_HEADER = 1 << 16


def samples_file(folder: Path) -> Path:
    """The samples of the data that the trainer loaded last."""
    return folder / "samples"


def write_samples(folder: Path, samples: Samples) -> None:
    fields = ("training", "held_x", "held_y")
    _write(samples_file(folder), {name: as_array(getattr(samples, name)) for name in fields})


def read_samples(folder: Path) -> Samples:
    return Samples(**_read(samples_file(folder)))


def write_personal(path: Path, vector: Vector, expected: Reference) -> None:
    """Write a personal model, and torch's probabilities that its export must give."""
    arrays = {"inputs": expected.inputs, "probabilities": expected.probabilities}
    _write(path, {"vector": vector, **arrays})


def read_personal(path: Path) -> tuple[Vector, Reference]:
    found = _read(path)
    return found["vector"], Reference(found["inputs"], found["probabilities"])


def _write(path: Path, arrays: Mapping[str, Array]) -> None:
    with replacing(path, synced=False) as file:
        write(file, {name: from_array(array) for name, array in arrays.items()})


def _read(path: Path) -> dict[str, Array]:
    """The arrays of a file, mapped: the kernel reads what is used, and may forget it again."""
    try:
        with path.open("rb") as file:
            archive = Archive.open(file, LARGEST_HEADER)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    except WireError as error:
        raise StoreError(f"{path}: unreadable ({error})") from None
    return {name: _mapped(path, archive, name) for name in archive.names}


def _mapped(path: Path, archive: Archive, name: str) -> Array:
    entry = archive.entries[name]
    dtype = storage_dtype(entry.dtype)
    if 0 in entry.shape:  # nothing can be mapped
        return np.empty(entry.shape, dtype)
    start = archive.start + entry.data_offsets[0]
    return np.memmap(path, dtype, "r", start, entry.shape)
