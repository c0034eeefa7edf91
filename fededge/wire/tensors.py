"""Flat vectors as safetensors bytes: the layout's names, float32, and nothing else gets through."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import safetensors
import safetensors.numpy
import torch
from torch import Tensor

from fededge.errors import EgressError, WireError
from fededge.flat import Layout

__all__ = ["decode", "encode", "payload_limit", "spans"]

MODEL = "model"


def encode(layout: Layout, vectors: Mapping[str, Tensor]) -> bytes:
    """The model's tensors under their own names; any further vector's under `<vector>/<name>`.

    Only vectors of the layout are taken: there is no way to put anything else into the bytes.
    """
    flat: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
    for key, vector in vectors.items():
        if not isinstance(vector, Tensor) or vector.shape != (layout.size,):
            raise EgressError(f"'{key}' is not a vector of the layout: it must not travel")
        data = vector.detach().cpu().to(torch.float32).contiguous().numpy()
        for entry in layout.entries:
            flat[_name(key, entry.name)] = data[entry.span].reshape(entry.shape)
    return safetensors.numpy.save(flat)


def decode(layout: Layout, data: bytes, vectors: tuple[str, ...] = (MODEL,)) -> dict[str, Tensor]:
    """The vectors in these bytes, if they are exactly the ones expected and finite."""
    try:
        found = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise WireError(f"not safetensors bytes: {str(error)[:200]}") from None
    expected = {_name(key, e.name): (key, e) for key in vectors for e in layout.entries}
    if found.keys() != expected.keys():
        odd = [name[:80] for name in sorted(found.keys() ^ expected.keys())[:3]]
        raise WireError(f"the tensors are not those of the layout, for instance {odd}")
    out = {key: np.empty(layout.size, dtype=np.float32) for key in vectors}
    for name, (key, entry) in expected.items():
        tensor = found[name]
        if tensor.dtype != np.float32 or tensor.shape != entry.shape:
            raise WireError(
                f"tensor '{name}' is {tensor.dtype} {tensor.shape[:8]}, "
                f"the layout says float32 {entry.shape}"
            )
        out[key][entry.span] = tensor.reshape(-1)
    for key, vector in out.items():
        if not np.isfinite(vector).all():
            raise WireError(f"'{key}' holds numbers that are not finite")
    return {key: torch.from_numpy(vector) for key, vector in out.items()}


def spans(data: bytes) -> dict[str, tuple[int, int]]:
    """Where each tensor lies in bytes that `encode` made: for the ledger of what left."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    return {
        name: (start + facts["data_offsets"][0], start + facts["data_offsets"][1])
        for name, facts in header.items()
    }


def payload_limit(layout: Layout, vectors: int = 1) -> int:
    """More bytes than this cannot be an honest payload of this layout."""
    names = sum(len(entry.name) for entry in layout.entries)
    return vectors * (4 * layout.size + 2 * names + 200 * len(layout.entries)) + 4096


def _name(key: str, name: str) -> str:
    return name if key == MODEL else f"{key}/{name}"
