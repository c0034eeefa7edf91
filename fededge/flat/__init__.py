"""A model as one flat vector: the parameters and float buffers of a module in one float32 buffer.

Aggregation, hashing, gradient corrections and the wire format are then one pass over one buffer.
The module's parameters keep their identity and become views of it.
"""

from __future__ import annotations

from fededge.flat.layout import Entry, Layout
from fededge.flat.model import FlatModel
from fededge.flat.numbers import Vector, as_numpy, as_tensors, blocks, finite

__all__ = ["Entry", "FlatModel", "Layout", "Vector", "as_numpy", "as_tensors", "blocks", "finite"]
