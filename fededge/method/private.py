"""Private state: what a method keeps on the device between rounds. It is never sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn, TypeVar

from fededge._internal.lazy_torch import Tensor
from fededge.errors import EgressError

__all__ = ["Private", "Value", "values_of"]

Value = Tensor | float | int

T = TypeVar("T")


class Private(Mapping[str, Value]):
    """Named tensors and numbers of one device, each under its layer's name: `map.inherited`.

    Anyone may read it. Only the agent's private store serialises it, through `items()`: pickle,
    copyreg and numpy raise, and the wire's encoder refuses the type.
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
        """Return one layer's state, without the prefix of its name."""
        return Private(values_of(self, layer))

    def updated(self, layer: str, values: Mapping[str, Value]) -> Private:
        """Return a copy in which these values of a layer are new."""
        return Private({**self._values, **{f"{layer}.{k}": v for k, v in values.items()}})

    def without(self, name: str) -> tuple[Private, Tensor | None]:
        """Return a copy without a tensor, and that tensor."""
        rest = {key: value for key, value in self._values.items() if key != name}
        return Private(rest), self.tensor(name) if name in self._values else None

    def including(self, name: str, value: Tensor | None) -> Private:
        """Return a copy with this tensor; `self` if `value` is None."""
        return self if value is None else Private({**self._values, name: value})

    def tensor(self, name: str) -> Tensor:
        """Return a value that must be a tensor."""
        value = self._values[name]
        if not isinstance(value, Tensor):
            raise TypeError(f"private '{name}' is a number, not a tensor")
        return value

    def number(self, name: str, default: float = 0.0) -> float:
        """Return a value that must be a number."""
        value = self._values.get(name, default)
        if isinstance(value, Tensor):
            raise TypeError(f"private '{name}' is a tensor, not a number")
        return value

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise EgressError("private state stays on its device: it cannot be serialised")

    def __array__(self, *args: object, **options: object) -> NoReturn:
        raise EgressError("private state stays on its device: it cannot become an array")


def values_of(values: Mapping[str, T], layer: str) -> dict[str, T]:
    """Return one layer's values, without the prefix of its name."""
    prefix = f"{layer}."
    return {k[len(prefix) :]: v for k, v in values.items() if k.startswith(prefix)}
