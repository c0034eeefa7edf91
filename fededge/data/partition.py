"""Imitate a fleet with skewed labels: share one data set among devices, the same way every time."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from fededge.errors import ConfigError

__all__ = ["local_split", "partition"]

GRAMMAR = (
    "'dirichlet:A' (A above 0, e.g. dirichlet:0.1), 'pathological:K' (K classes a device), "
    "'incomplete' or 'incomplete:LOW-HIGH' (a random number of classes), 'uniform'"
)
TRIES = 100


def partition(
    labels: np.ndarray, devices: int, spec: str, seed: int, min_size: int = 10
) -> list[np.ndarray]:
    """Share the samples among devices; no sample goes to two of them.

    * `dirichlet:A`: of each class, device k gets a share drawn from a symmetric Dirichlet(A); a
      device that has its even part of all samples gets nothing of the classes still to come. Drawn
      again until each device has `min_size` samples; after 100 draws, the last one is repaired: the
      largest devices give samples of their largest class. Every sample goes to a device.
    * `pathological:K`: each device holds K classes, each class is shared evenly among its holders,
      whose numbers differ by one at most (of a class with fewer samples than holders, some of
      them get none). Every sample goes to a device if devices x K reaches the
      number of classes; otherwise the classes that nobody holds are left out.
    * `incomplete:LOW-HIGH`: as pathological, but each device draws its own K between LOW and HIGH;
      plain `incomplete` draws from 2 to all classes.
    * `uniform`: shuffled and dealt out evenly, with no skew. Every sample goes to a device.

    Args:
        labels: class numbers, int [N].
        devices: how many parts.
        spec: one of the above.
        seed: the same seed gives the same parts.
        min_size: the fewest samples that a device may get.

    Returns:
        For each device, the sorted positions of its samples.
    """
    name, value = _parse(spec)
    _check(labels, devices, seed, min_size)
    rng = np.random.default_rng(seed)
    if name == "uniform":
        parts = np.array_split(rng.permutation(len(labels)), devices)
    elif name == "dirichlet":
        parts = _dirichlet(rng, labels, devices, _above_zero(spec, value), min_size)
    else:
        low, high = _class_range(spec, name, value, len(np.unique(labels)))
        holders = _deal(rng, labels, rng.integers(low, high + 1, devices))
        parts = _share(rng, labels, holders, devices)
        _check_smallest(parts, spec, min_size)
    return [np.sort(part).astype(np.int64) for part in parts]


def local_split(
    labels: np.ndarray, indices: np.ndarray, test_share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split a device's samples into training and test, each class by the same share.

    The test part has `test_share` of the samples, rounded, and at least one, as far as this holds:
    each class keeps at least one sample for training. A class with one sample is therefore never
    tested, and every class that is tested has been trained.

    Args:
        labels: class numbers of the whole data set.
        indices: positions of the device's samples in it.
        test_share: from 0 (no test part) up to, not including, 1.
        seed: the same seed gives the same split.

    Returns:
        Sorted positions of the training and of the test samples.
    """
    if not 0 <= test_share < 1:
        raise ConfigError(f"test_share must be from 0 up to, not including, 1, got {test_share}")
    indices = np.sort(np.asarray(indices, np.int64))
    _, number, sizes = np.unique(labels[indices], return_inverse=True, return_counts=True)
    wanted = max(round(test_share * len(indices)), 1) if test_share > 0 else 0
    held = _apportion(sizes, test_share, wanted)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(indices))
    order = order[np.argsort(number[order], kind="stable")]  # shuffled within each class
    rank = np.arange(len(indices)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    tested = np.zeros(len(indices), bool)
    tested[order] = rank < np.repeat(held, sizes)
    return indices[~tested], indices[tested]


def _apportion(sizes: np.ndarray, share: float, wanted: int) -> np.ndarray:
    """How many of each class are tested: its share rounded down, then by the largest remainder."""
    held: np.ndarray = np.minimum(np.floor(sizes * share).astype(np.int64), sizes - 1)
    while held.sum() < min(wanted, (sizes - 1).sum()):
        remainder = np.where(held < sizes - 1, sizes * share - held, -np.inf)
        held[np.argmax(remainder)] += 1
    return held


def _parse(spec: str) -> tuple[str, str]:
    name, _, value = spec.partition(":")
    takes_value = {"dirichlet": True, "pathological": True, "uniform": False}
    if name not in {*takes_value, "incomplete"} or takes_value.get(name, bool(value)) != bool(
        value
    ):
        raise ConfigError(f"no split {spec!r}; allowed are {GRAMMAR}")
    return name, value


def _above_zero(spec: str, value: str) -> float:
    try:
        alpha = float(value)
    except ValueError:
        alpha = math.nan
    if not 0 < alpha < math.inf:
        raise ConfigError(
            f"split {spec!r}: {value!r} is not a number above 0; allowed are {GRAMMAR}"
        )
    return alpha


def _class_range(spec: str, name: str, value: str, classes: int) -> tuple[int, int]:
    """The fewest and the most classes that a device may hold."""
    pattern = r"(\d{1,6})" if name == "pathological" else r"(\d{1,6})-(\d{1,6})"
    match = re.fullmatch(pattern, value or f"{min(2, classes)}-{classes}")
    if match is None:
        raise ConfigError(f"split {spec!r}: cannot read {value!r}; allowed are {GRAMMAR}")
    low, high = int(match[1]), int(match[match.re.groups])
    if not 1 <= low <= high <= classes:
        raise ConfigError(f"split {spec!r}: a device can hold 1 to {classes} classes of this data")
    return low, high


def _check(labels: np.ndarray, devices: int, seed: int, min_size: int) -> None:
    if devices < 1 or min_size < 0 or seed < 0:
        raise ConfigError(
            f"a split needs devices >= 1, min_size >= 0 and seed >= 0, got {devices}, {min_size} "
            f"and {seed}"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ConfigError(f"a split needs one row of class numbers, got {labels.dtype}")
    if len(labels) < max(devices * min_size, 1):
        raise ConfigError(
            f"{len(labels)} samples cannot give {devices} devices {min_size} each; ask for fewer "
            "devices"
        )


def _dirichlet(
    rng: np.random.Generator,
    labels: np.ndarray,
    devices: int,
    alpha: float,
    min_size: int,
) -> list[np.ndarray]:
    for _ in range(TRIES):
        owner = _draw(rng, labels, devices, alpha)
        if np.bincount(owner, minlength=devices).min() >= min_size:
            break
    else:
        _repair(owner, labels, devices, min_size)
    return [np.flatnonzero(owner == device) for device in range(devices)]


def _draw(rng: np.random.Generator, labels: np.ndarray, devices: int, alpha: float) -> np.ndarray:
    """One draw: the device that owns each sample."""
    owner = np.empty(len(labels), np.int64)
    sizes = np.zeros(devices, np.int64)
    for label in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == label))
        # Never empty, as some samples are still to come. Drawing for these devices alone is the
        # papers' draw for all, zeroed for the others and rescaled, without its division by zero.
        below = np.flatnonzero(sizes < len(labels) / devices)
        shares = rng.dirichlet(np.full(len(below), alpha))
        cuts = np.round(np.cumsum(shares) * len(samples)).astype(np.int64)
        taken = np.diff(cuts, prepend=0)
        owner[samples] = np.repeat(below, taken)
        sizes[below] += taken
    return owner


def _repair(owner: np.ndarray, labels: np.ndarray, devices: int, min_size: int) -> None:
    """Fill up the devices that are too small, one sample at a time, from the largest one."""
    sizes = np.bincount(owner, minlength=devices)
    while sizes.min() < min_size:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        held = np.flatnonzero(owner == rich)
        largest = np.bincount(labels[held]).argmax()
        owner[held[labels[held] == largest][0]] = poor
        sizes[poor] += 1
        sizes[rich] -= 1


def _deal(rng: np.random.Generator, labels: np.ndarray, sizes: np.ndarray) -> dict[int, list[int]]:
    """The holders of each class: every device takes those held least so far, ties at random."""
    classes = np.unique(labels)
    held = np.zeros(len(classes), np.int64)
    holders: dict[int, list[int]] = {int(label): [] for label in classes}
    for device in rng.permutation(len(sizes)):
        order = rng.permutation(len(classes))
        chosen = order[np.argsort(held[order], kind="stable")][: sizes[device]]
        held[chosen] += 1
        for label in classes[chosen]:
            holders[int(label)].append(int(device))
    return holders


def _share(
    rng: np.random.Generator,
    labels: np.ndarray,
    holders: dict[int, list[int]],
    devices: int,
) -> list[np.ndarray]:
    """Each class in even parts to its holders."""
    parts: list[list[np.ndarray]] = [[] for _ in range(devices)]
    for label, group in holders.items():
        if group:
            samples = rng.permutation(np.flatnonzero(labels == label))
            for device, part in zip(group, np.array_split(samples, len(group)), strict=True):
                parts[device].append(part)
    return [np.concatenate(part) for part in parts]


def _check_smallest(parts: Sequence[np.ndarray], spec: str, min_size: int) -> None:
    smallest = min(len(part) for part in parts)
    if smallest < min_size:
        raise ConfigError(
            f"split {spec!r} leaves a device with {smallest} samples instead of {min_size}; ask "
            "for fewer devices or more classes for each"
        )
