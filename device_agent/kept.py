"""Private state in a file: tensors under their names, numbers as `#name`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fededge.errors import MethodError
from fededge.methods.private import Private, Value
from fededge.wire import container
from fededge.wire.container import Sink

__all__ = ["dump", "private_of"]


def dump(private: Private, file: Sink) -> None:
    """Tensors under their names, numbers as `#name`: whole ones as int64, others as float64."""
    values: dict[str, torch.Tensor] = {}
    for name, value in private.items():
        if not isinstance(value, torch.Tensor):
            values[f"#{name}"] = _number(value)
        elif value.dtype in container.NAMES:
            values[name] = value.detach().cpu().contiguous()
        else:
            raise MethodError(f"private state '{name}' is {value.dtype}, which cannot be kept")
    container.write(file, values)


def _number(value: Value) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


def private_of(values: Mapping[str, torch.Tensor]) -> Private:
    """What `dump` wrote."""
    return Private({k.removeprefix("#"): v.item() if k[0] == "#" else v for k, v in values.items()})
