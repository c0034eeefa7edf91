"""Private state in a file: tensors under their names, numbers as `#name`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from fededge.errors import MethodError, StoreError, WireError
from fededge.method.private import Private, Value
from fededge.storage.files import stream_sha256
from fededge.wire import container
from fededge.wire.container import RawTensor, Sink, TensorSpec

__all__ = ["dump", "load"]

DTYPES: dict[str, torch.dtype] = {
    code: getattr(torch, name) for code, name in container.DTYPES.items()
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


def dump(private: Private, file: Sink) -> None:
    """Write private state: integers as int64, other numbers as float64."""
    values: dict[str, RawTensor] = {}
    for name, value in private.items():
        if not isinstance(value, torch.Tensor):
            values[f"#{name}"] = _plain(_number(value))
        elif value.dtype in CODES:
            values[name] = _plain(value.detach().cpu().contiguous())
        else:
            raise MethodError(f"private state '{name}' is {value.dtype}, which cannot be kept")
    container.write(file, values)


def _number(value: Value) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


def _plain(tensor: torch.Tensor) -> RawTensor:
    flat = tensor.as_strided((tensor.numel(),), (1,))  # a single number may have any stride
    return RawTensor(
        TensorSpec(CODES[tensor.dtype], tuple(tensor.shape)), flat.view(torch.uint8).numpy().data
    )


def load(path: Path, sha256: str, wanted: Callable[[str], bool]) -> Private:
    """The wanted pieces of the private state in a file; StoreError if the file is damaged."""
    try:
        with path.open("rb") as file:
            if stream_sha256(file) != sha256:
                raise StoreError(
                    f"{path}: damaged, its SHA-256 does not fit; start the agent again"
                )
            return _private_of(container.read(file, lambda name: wanted(name.removeprefix("#"))))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
    except WireError as error:
        raise StoreError(f"{path}: unreadable ({error})") from None


def _private_of(values: Mapping[str, RawTensor]) -> Private:
    """The private state that `dump` wrote."""
    found: dict[str, Value] = {}
    for name, plain in values.items():
        tensor = _tensor(plain)
        found[name.removeprefix("#")] = tensor.item() if name[0] == "#" else tensor
    return Private(found)


def _tensor(plain: RawTensor) -> torch.Tensor:
    (code, shape), data = plain
    if not data:  # torch refuses an empty buffer
        return torch.empty(shape, dtype=DTYPES[code])
    return torch.frombuffer(data, dtype=DTYPES[code]).view(shape)
