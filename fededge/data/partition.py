"""Partition a data set among simulated devices with skewed labels; equal for equal seeds."""

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
    """Partition the samples among devices; no sample goes to two of them.

    * `dirichlet:A`: device k gets a share of each class drawn from a symmetric Dirichlet(A); a
      device that has its even part of all samples gets none of the remaining classes. Drawn again
      until each device has `min_size` samples. After 100 draws the last one is repaired: the
      largest devices give samples of their largest class. Every sample goes to a device.
    * `pathological:K`: each device has K classes, and each class is shared evenly among its
      devices, whose numbers differ by one at most (if a class has fewer samples than devices, some
      get none). Every sample goes to a device if devices x K reaches the number of classes;
      otherwise the classes without a device are left out.
    * `incomplete:LOW-HIGH`: as pathological, but each device draws its own K between LOW and HIGH;
      plain `incomplete` draws from 2 to all classes.
    * `uniform`: shuffled and dealt evenly, without skew. Every sample goes to a device.

    Args:
        labels: class numbers, int [N].
        devices: the number of parts.
        spec: one of the above.
        seed: the same seed gives the same parts.
        min_size: the fewest samples of a device.

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
    """Split a device's samples into training and test, with the same share of each class.

    The test part has `test_share` of the samples, rounded, and at least one; but each class keeps
    at least one sample for training. So a class with one sample is never tested, and every tested
    class has been trained.

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
    test_counts = _apportion(sizes, test_share, wanted)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(indices))
    order = order[np.argsort(number[order], kind="stable")]  # shuffled within each class
    rank = np.arange(len(indices)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    tested = np.zeros(len(indices), bool)
    tested[order] = rank < np.repeat(test_counts, sizes)
    return indices[~tested], indices[tested]


def _apportion(sizes: np.ndarray, share: float, wanted: int) -> np.ndarray:
    """Return each class's test samples: its share rounded down, then by largest remainder."""
    counts: np.ndarray = np.minimum(np.floor(sizes * share).astype(np.int64), sizes - 1)
    while counts.sum() < min(wanted, (sizes - 1).sum()):
        remainder = np.where(counts < sizes - 1, sizes * share - counts, -np.inf)
        counts[np.argmax(remainder)] += 1
    return counts


def _parse(spec: str) -> tuple[str, str]:
    name, _, value = spec.partition(":")
    takes_value = {"dirichlet": True, "pathological": True, "uniform": False}
    if name not in {*takes_value, "incomplete"} or takes_value.get(name, bool(value)) != bool(
        value
    ):
        raise ConfigError(f"unknown split {spec!r}; allowed are {GRAMMAR}")
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
    """Return the fewest and the most classes of a device."""
    pattern = r"(\d{1,6})" if name == "pathological" else r"(\d{1,6})-(\d{1,6})"
    match = re.fullmatch(pattern, value or f"{min(2, classes)}-{classes}")
    if match is None:
        raise ConfigError(f"split {spec!r}: cannot read {value!r}; allowed are {GRAMMAR}")
    low, high = int(match[1]), int(match[match.re.groups])
    if not 1 <= low <= high <= classes:
        raise ConfigError(f"split {spec!r}: a device can have 1 to {classes} classes of this data")
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
            f"{len(labels)} samples are too few for {devices} devices with {min_size} each; ask "
            "for fewer devices"
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
    """Draw the device of each sample once."""
    owner = np.empty(len(labels), np.int64)
    sizes = np.zeros(devices, np.int64)
    for label in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == label))
        # Never empty, for samples remain. A draw for these devices alone equals the papers' draw
        # for all, zeroed for the others and rescaled, without its division by zero.
        below = np.flatnonzero(sizes < len(labels) / devices)
        shares = rng.dirichlet(np.full(len(below), alpha))
        cuts = np.round(np.cumsum(shares) * len(samples)).astype(np.int64)
        taken = np.diff(cuts, prepend=0)
        owner[samples] = np.repeat(below, taken)
        sizes[below] += taken
    return owner


def _repair(owner: np.ndarray, labels: np.ndarray, devices: int, min_size: int) -> None:
    """Fill up devices that are too small, one sample at a time, from the largest device."""
    sizes = np.bincount(owner, minlength=devices)
    while sizes.min() < min_size:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        owned = np.flatnonzero(owner == rich)
        largest = np.bincount(labels[owned]).argmax()
        owner[owned[labels[owned] == largest][0]] = poor
        sizes[poor] += 1
        sizes[rich] -= 1


def _deal(rng: np.random.Generator, labels: np.ndarray, sizes: np.ndarray) -> dict[int, list[int]]:
    """Return each class's devices; each device takes the least taken classes, ties at random."""
    classes = np.unique(labels)
    counts = np.zeros(len(classes), np.int64)
    holders: dict[int, list[int]] = {int(label): [] for label in classes}
    for device in rng.permutation(len(sizes)):
        order = rng.permutation(len(classes))
        chosen = order[np.argsort(counts[order], kind="stable")][: sizes[device]]
        counts[chosen] += 1
        for label in classes[chosen]:
            holders[int(label)].append(int(device))
    return holders


def _share(
    rng: np.random.Generator,
    labels: np.ndarray,
    holders: dict[int, list[int]],
    devices: int,
) -> list[np.ndarray]:
    """Split each class evenly among its devices."""
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
