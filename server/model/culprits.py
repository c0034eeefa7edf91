"""Finds the culprits of a failed merge: it is tried again without those that stand out most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fededge.errors import FedEdgeError, StoreError

__all__ = ["Sifted", "sift"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Sifted(Generic[T]):
    """The result of a merge without its culprits, and why it failed with them.

    Without a result nobody is named: it may be the method that fails, and not a device.
    """

    result: T | None
    culprits: tuple[str, ...] = ()
    reason: str = ""


def sift(suspects: Sequence[str], merge: Callable[[Sequence[str]], T]) -> Sifted[T]:
    """Merge as many devices as possible; at most half of them can be culprits.

    Args:
        suspects: all devices, those first that stand out most.
        merge: gives the result for these devices, or raises anything.
    """
    reason = ""
    for left_out in _trials(suspects):
        result, why = _tried(merge, suspects, left_out)
        if result is not None:
            result, culprits = _cleared(merge, suspects, left_out, result)
            return Sifted(result, culprits, reason)
        reason = reason or why
    return Sifted(None, (), reason)


def _trials(suspects: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The trials: nobody left out; then each one in order; then the first two, four, eight, …."""
    yield ()
    most = len(suspects) // 2
    if most:
        yield from ((device,) for device in suspects)
    count = 2
    while count <= most:
        yield tuple(suspects[:count])
        count *= 2


def _tried(
    merge: Callable[[Sequence[str]], T], devices: Sequence[str], left_out: Sequence[str]
) -> tuple[T | None, str]:
    try:
        return merge([device for device in devices if device not in left_out]), ""
    except (StoreError, MemoryError):  # our disk or memory failed: no device is to blame
        raise
    except FedEdgeError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001  # a plugin method may raise anything
        return None, f"{type(error).__name__}: {error}"


def _cleared(
    merge: Callable[[Sequence[str]], T],
    devices: Sequence[str],
    left_out: tuple[str, ...],
    result: T,
) -> tuple[T, tuple[str, ...]]:
    """Take back, one by one, devices that were left out together with a culprit."""
    if len(left_out) > 1:
        for device in reversed(left_out):
            fewer = tuple(other for other in left_out if other != device)
            found, _ = _tried(merge, devices, fewer)
            if found is not None:
                left_out, result = fewer, found
    return result, left_out
