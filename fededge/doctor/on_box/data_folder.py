"""The labelled examples: readable, of the federation's classes, and enough of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from fededge.config import AgentConfig, DataConfig
from fededge.data.formats.images import class_folders, folders, image_files, read_images
from fededge.data.local import check_device_data
from fededge.data.raw import Naming
from fededge.doctor.catalogue import Diagnosis, found
from fededge.doctor.subject import Subject
from fededge.errors import ConfigError, DataError

__all__ = ["examples"]

FEWEST = 10
MOST_LISTED = 5
SECONDS = 2.0
"""Time for opening images, unless --deep asks for all of them."""

QUICK = ("npz", "csv")
"""Sources in one file; the public sets are read with --deep only."""


def examples(subject: Subject) -> Iterator[Diagnosis]:
    data, agent = subject.config.data, isinstance(subject.config, AgentConfig)
    if agent and data.source == "none":
        yield found("data-missing", "no [data] source", **subject.values)
        return
    try:
        if agent:
            check_device_data(data)
        if data.source == "folder":
            yield from _folder(subject, Path(data.root), Naming(data.aliases, data.ignore))
        elif data.source in QUICK or (subject.deep and data.source not in ("none", "embedded")):
            yield from _file(subject, data)
    except (DataError, ConfigError) as error:
        yield found("data-unreadable", str(error), root=data.root or ".")


def _labels(subject: Subject) -> tuple[str, ...] | None:
    return None if subject.state is None else tuple(subject.state.model.labels)


def _folder(subject: Subject, root: Path, naming: Naming) -> Iterator[Diagnosis]:
    parts = {path.name: path for path in folders(root)}
    classes = class_folders(root, naming)
    if set(parts) == {"train", "test"}:
        classes = [path for part in parts.values() for path in class_folders(part, naming)]
    if not classes:
        raise DataError(f"{root}: it must hold one sub-folder of images for each class")
    yield from _unknown(classes, _labels(subject), naming)
    images: list[Path] = []
    for folder in classes:
        here = image_files(folder)
        images += here
        if not here:
            yield found("class-empty", f"{folder}: no image in it", folder=folder)
    yield from _few(len(images), root)
    yield from _broken(subject, images)


def _unknown(
    classes: Sequence[Path], labels: tuple[str, ...] | None, naming: Naming
) -> Iterator[Diagnosis]:
    for folder in classes:
        if labels is not None and naming.label(folder.name) not in labels:
            close = difflib.get_close_matches(folder.name, labels, n=1) or ["<a known label>"]
            known = ", ".join(labels[:MOST_LISTED]) + (", …" if len(labels) > MOST_LISTED else "")
            what = f"{folder}: the federation does not know this label; it has: {known}"
            yield found("label-unknown", what, folder=folder, other=folder.parent / close[0])


def _few(count: int, root: object) -> Iterator[Diagnosis]:
    if count < FEWEST:
        what = f"{root}: {count} examples, fewer than {FEWEST}"
        yield found("few-examples", what, root=root)


def _broken(subject: Subject, images: Sequence[Path]) -> Iterator[Diagnosis]:
    """Open image by image; a large folder is read in part, unless --deep asks for all of it."""
    end, broken = subject.box.clock() + SECONDS, 0
    for path in images:
        if not subject.deep and subject.box.clock() > end:
            return
        try:
            read_images([path], None)
        except DataError as error:
            broken += 1
            yield found("image-unreadable", str(error), image=path)
            if broken == MOST_LISTED:
                return


def _file(subject: Subject, data: DataConfig) -> Iterator[Diagnosis]:
    from fededge.data.sources import load

    root = Path(data.root) if data.root else None
    spec = None if subject.state is None else subject.state.model
    shape = None if spec is None else spec.shape
    vocabulary = 0 if spec is None else spec.vocabulary
    naming = Naming(data.aliases, data.ignore)
    train, _ = load(
        data.source,
        root,
        shape=shape,
        labels=_labels(subject),
        vocabulary=vocabulary,
        naming=naming,
    )
    yield from _few(len(train), data.root)
