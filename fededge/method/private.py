"""Private state: what a method keeps on the device between rounds, and cannot be sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

from fededge._internal.lazy_torch import Tensor
from fededge.errors import EgressError

__all__ = ["Private", "Value"]

Value = Tensor | float | int


class Private(Mapping[str, Value]):
    """Named tensors and numbers of one device, each under its layer's name: `map.inherited`.

    Reading is free. Serialising is not: the agent's private store reaches for `items()`; every
    general way out (pickle, copyreg, numpy) raises, and the wire's encoder takes no such type.
    """

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Private({', '.join(self._values)})"

    def of(self, layer: str) -> Private:
        """The pieces of one layer, by their own names."""
        prefix = f"{layer}."
        return Private({k[len(prefix) :]: v for k, v in self.items() if k.startswith(prefix)})

    def updated(self, layer: str, values: Mapping[str, Value]) -> Private:
        """A copy in which these pieces of a layer are new."""
        return Private({**self._values, **{f"{layer}.{k}": v for k, v in values.items()}})

    def without(self, name: str) -> tuple[Private, Tensor | None]:
        """A copy without a tensor, and that tensor."""
        rest = {key: value for key, value in self._values.items() if key != name}
        return Private(rest), self.tensor(name) if name in self._values else None

    def including(self, name: str, value: Tensor | None) -> Private:
        """A copy with a tensor of this name; as it is, if there is none."""
        return self if value is None else Private({**self._values, name: value})

    def tensor(self, name: str) -> Tensor:
        """A piece that must be a tensor."""
        value = self._values[name]
        if not isinstance(value, Tensor):
            raise TypeError(f"private '{name}' is a number, not a tensor")
        return value

    def number(self, name: str, default: float = 0.0) -> float:
        """A piece that must be a number."""
        value = self._values.get(name, default)
        if isinstance(value, Tensor):
            raise TypeError(f"private '{name}' is a tensor, not a number")
        return value

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise EgressError("private state stays on its device: it cannot be serialised")

    def __array__(self, *args: object, **options: object) -> NoReturn:
        raise EgressError("private state stays on its device: it cannot become an array")
