"""Weights as a file: a run exports a version's, and a new run, simulated or real, begins with them.

The file is safetensors: the layout's tensors as float32 under the network's own names, and texts
about where they come from. It may come from anywhere: all of it is checked, and nothing in it runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, BinaryIO

import msgspec
import numpy as np
from msgspec import Meta, Struct

from fededge._internal.plain_text import plain
from fededge.errors import ConfigError, WireError
from fededge.flat import Layout, Vector, finite
from fededge.model_spec import ModelSpec
from fededge.storage.files import replacing
from fededge.wire import container
from fededge.wire.container import HeaderEntry, TensorSpec, raw

__all__ = ["StartWeights", "WeightsOrigin", "read_weights", "write_weights"]

ABOUT = "fededge"
"""The key of the file's metadata that has a `WeightsOrigin` as JSON."""

LARGEST_HEADER = 16 * 1024 * 1024
MOST_NAMED = 10
"""Differences that a sentence names."""

Text = Annotated[str, Meta(max_length=200)]


class WeightsOrigin(Struct, frozen=True, kw_only=True):
    """The facts in a file of weights about itself; fields of newer versions are left unread."""

    federation: Text
    version: Text
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    labels: Annotated[tuple[Text, ...], Meta(max_length=100_000)]
    mean: Annotated[tuple[float, ...], Meta(max_length=1000)] = ()
    std: Annotated[tuple[float, ...], Meta(max_length=1000)] = ()


@dataclass(frozen=True, eq=False)
class StartWeights:
    """The weights of a file that fits; `said` is where they come from, for a person.

    `doubt`: a sentence if the network reads its inputs otherwise than they were trained for.
    """

    model: Vector
    said: str
    doubt: str = ""


def write_weights(path: Path, layout: Layout, model: Vector, origin: WeightsOrigin) -> None:
    """Write a model's tensors, and where they come from."""
    tensors = {e.name: container.from_array(model[e.span].reshape(e.shape)) for e in layout.entries}
    with replacing(path.absolute()) as file:
        container.write(file, tensors, {ABOUT: msgspec.json.encode(origin).decode()})


def read_weights(path: Path, layout: Layout, spec: ModelSpec) -> StartWeights:
    """Read the weights that a run of this network begins with.

    Raises:
        ConfigError: one sentence if the file cannot be read, is not whole, or does not fit; it
            names each difference.
    """
    try:
        with _opened(path) as file:
            archive = container.Archive.open(file, LARGEST_HEADER)
            origin = _origin(archive.metadata)
            _check_fit(path, archive.entries, layout, origin, spec)
            model = _numbers(archive, layout)
    except (OSError, WireError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"weights {path}: cannot be read ({reason})") from None
    if origin is not None and origin.sha256 != layout.sha256(model):
        raise ConfigError(
            f"weights {path}: damaged, or changed by another program: its numbers are not those of "
            f"version {plain(origin.version)}, which it names; export them again"
        )
    return StartWeights(model, _said(path, origin), _doubt(path, origin, spec))


def _opened(path: Path) -> BinaryIO:
    """Open a plain file; a pipe would wait for ever."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise WireError("not a file")
    return file


def _origin(metadata: Mapping[str, str]) -> WeightsOrigin | None:
    """Where the weights come from; None if another program wrote the file."""
    text = metadata.get(ABOUT)
    try:
        return None if text is None else msgspec.json.decode(text, type=WeightsOrigin)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"its metadata '{ABOUT}': {str(error)[:200]}") from None


def _check_fit(
    path: Path,
    entries: Mapping[str, HeaderEntry],
    layout: Layout,
    origin: WeightsOrigin | None,
    spec: ModelSpec,
) -> None:
    found = [*_differences(entries, layout)]
    if origin is not None and origin.labels != spec.labels:
        theirs, ours = _listed(origin.labels), _listed(spec.labels)
        found.append(f"its labels are {theirs}, the federation's are {ours}")
    if found:
        more = len(found) - MOST_NAMED
        others = f"; and {more} more" if more > 0 else ""
        raise ConfigError(
            f"weights {path}: they do not fit the network of [model]: "
            f"{'; '.join(found[:MOST_NAMED])}{others}"
        )


def _differences(entries: Mapping[str, HeaderEntry], layout: Layout) -> Iterator[str]:
    """Name each tensor that is missing, unknown, or of another shape or dtype."""
    for wanted in layout.entries:
        entry = entries.get(wanted.name)
        if entry is None:
            yield f"{wanted.name} is missing"
        elif entry.shape != wanted.shape:
            yield f"{wanted.name} is {_shape(entry.shape)}, not {_shape(wanted.shape)}"
        elif entry.dtype != "F32":
            yield f"{wanted.name} is {entry.dtype}, not F32"
    known = {wanted.name for wanted in layout.entries}
    for name in sorted(entries.keys() - known):
        yield f"the network has no {plain(name, 80)}"


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape[:8])) or "a single number"


def _listed(labels: tuple[str, ...]) -> str:
    shown = ", ".join(plain(label, 40) for label in labels[:MOST_NAMED])
    return f"{shown}, … ({len(labels)})" if len(labels) > MOST_NAMED else shown


def _numbers(archive: container.Archive, layout: Layout) -> Vector:
    model: Vector = np.empty(layout.size, np.float32)
    for entry in layout.entries:
        archive.read(entry.name, TensorSpec("F32", entry.shape), raw(model[entry.span]))
    if not finite(model):
        raise WireError("it holds numbers that are not finite")
    return model


def _said(path: Path, origin: WeightsOrigin | None) -> str:
    """Where the weights come from, as the journal has it."""
    if origin is None:
        return f"the weights in {plain(path.name)}"
    version, federation = plain(origin.version), plain(origin.federation)
    return f"version {version} of federation {federation}, by {plain(path.name)}"


def _doubt(path: Path, origin: WeightsOrigin | None, spec: ModelSpec) -> str:
    """A sentence if the inputs are normalised otherwise than where the weights were trained."""
    if origin is None:
        return ""
    theirs, ours = (*origin.mean, *origin.std), (*spec.mean, *spec.std)
    if len(theirs) == len(ours) and np.allclose(theirs, ours, rtol=1e-5, atol=1e-7):
        return ""
    return (
        f"weights {path}: they were trained with mean {[*origin.mean]} and std {[*origin.std]}, "
        f"this federation has {[*spec.mean]} and {[*spec.std]}; to go on as before, put the "
        "former into [model]"
    )
