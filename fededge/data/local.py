"""Examples from a `[data]` section: a device's own, a simulated device's share, a test set."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fededge._internal.plain_text import plain
from fededge.config import DataConfig, ModelConfig
from fededge.data.dataset import Dataset
from fededge.data.partition import local_split, partition
from fededge.data.raw import Naming
from fededge.data.sources import load
from fededge.errors import ConfigError, DataError
from fededge.model_spec import MAX_NAME, ModelSpec
from fededge.training import Examples

__all__ = [
    "check_device_data",
    "check_device_section",
    "device_examples",
    "evaluation_set",
    "experiment_data",
    "model_spec",
    "share_examples",
]


def device_examples(config: DataConfig, spec: ModelSpec, most_bytes: int | None = None) -> Examples:
    """Load the examples of the device that this section describes, in at most `most_bytes`."""
    check_device_data(config)
    train, test = _load(config, spec, most_bytes)
    if config.split:
        return share_examples(train, config)[config.index]
    if test is None:
        return _held_out(train, np.arange(len(train)), config)
    return Examples(train.x, train.y, test.x, test.y, spec.classes, train.skipped)


def check_device_data(config: DataConfig) -> None:
    """Refuse a section from which no examples can be loaded now, in any federation."""
    check_device_section(config)
    if config.root and not Path(config.root).exists():
        raise DataError(
            f"{config.root}: there is no such file or folder; check `root`",
            "the device's [data] root does not exist",
        )


def check_device_section(config: DataConfig) -> None:
    """Refuse a section from which no device can ever load examples."""
    if config.source == "none":
        raise DataError(
            "a device cannot train without data: set [data] source, such as source = 'folder' with "
            "root = 'images', or source = 'embedded' for a trial with images of Fashion-MNIST"
        )
    if config.split and config.index >= config.devices:
        raise ConfigError(
            f"data.index is {config.index}, but must be below data.devices, {config.devices}; "
            "the first device has index 0"
        )


def share_examples(train: Dataset, config: DataConfig) -> list[Examples]:
    """Partition a training set among devices as `split` says, each with a held-out part."""
    shares = partition(train.y.numpy(), config.devices, config.split, config.seed)
    return [_held_out(train, share, config) for share in shares]


def experiment_data(model: ModelConfig, data: DataConfig) -> tuple[ModelSpec, Dataset, Dataset]:
    """Read a source once, for an experiment that it decides.

    Returns:
        The network, labels and normalisation; the data that is partitioned among the devices; the
        source's test set, or else all of it.
    """
    train, test = load(data.source, _root(data), naming=_naming(data))
    return _spec(model, train), train, train if test is None else test


def evaluation_set(config: DataConfig, spec: ModelSpec) -> Dataset:
    """Load the data that evaluates a global model: the source's test set, or else all of it."""
    train, test = _load(config, spec)
    return train if test is None else test


def model_spec(model: ModelConfig, data: DataConfig) -> ModelSpec:
    """Return a federation's network, labels and normalisation: configured, or from the data."""
    normalised = model.vocabulary or (model.mean and model.std)
    if model.labels and model.shape and normalised:
        train = None
    elif data.source == "none":
        raise ConfigError(
            "without [data] source, [model] must give labels and shape, and mean and std (images) "
            "or vocabulary (texts)"
        )
    else:
        train, _ = load(data.source, _root(data), naming=_naming(data))
    return _spec(model, train)


def _spec(model: ModelConfig, train: Dataset | None) -> ModelSpec:
    """Return what is configured, and the rest as the training set has it."""
    labels = model.labels or _of(train).labels
    _check_labels(labels)
    try:
        return ModelSpec(
            name=model.name,
            labels=labels,
            shape=model.shape or _of(train).shape,
            mean=model.mean or (train.mean if train else ()),
            std=model.std or (train.std if train else ()),
            head=model.head,
            vocabulary=model.vocabulary or (train.vocabulary if train else 0),
        )
    except ValueError as error:
        raise ConfigError(f"[model]: {error}") from None


def _check_labels(labels: Iterable[str]) -> None:
    """Refuse labels that devices would refuse: empty, too long, or not printable."""
    for label in labels:
        if not label or plain(label, MAX_NAME) != label:
            raise ConfigError(
                f"label '{plain(label, MAX_NAME)}' must have 1 to {MAX_NAME} printable "
                "characters; rename its folder, or correct [model] labels"
            )


def _of(train: Dataset | None) -> Dataset:
    assert train is not None
    return train


def _load(
    config: DataConfig, spec: ModelSpec, most_bytes: int | None = None
) -> tuple[Dataset, Dataset | None]:
    """Load the source's data in the form that the federation's network takes."""
    return load(
        config.source,
        _root(config),
        shape=spec.shape,
        labels=spec.labels,
        vocabulary=spec.vocabulary,
        most_bytes=most_bytes,
        naming=_naming(config),
    )


def _held_out(train: Dataset, share: np.ndarray, config: DataConfig) -> Examples:
    trained, held_out = local_split(train.y.numpy(), share, config.test_share, config.seed)
    mine, test = train.subset(trained), train.subset(held_out)
    return Examples(mine.x, mine.y, test.x, test.y, len(train.labels), train.skipped)


def _naming(config: DataConfig) -> Naming:
    return Naming(config.aliases, config.ignore)


def _root(config: DataConfig) -> Path | None:
    return Path(config.root) if config.root else None
