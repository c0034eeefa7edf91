"""From a `[data]` section to examples: a device's own, a simulated device's share, a test set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fededge.config import DataConfig, ModelConfig
from fededge.data.dataset import Dataset
from fededge.data.partition import local_split, partition
from fededge.data.sources import load
from fededge.errors import ConfigError, DataError
from fededge.spec import ModelSpec
from fededge.training import Examples

__all__ = ["device_examples", "evaluation_set", "model_spec", "share_examples", "training_set"]


def device_examples(config: DataConfig, spec: ModelSpec) -> Examples:
    """The examples of the device that this section describes."""
    if config.source == "none":
        raise DataError("a device cannot train without data: set [data] source")
    train, test = _load(config, spec)
    if config.split:
        if config.index >= config.devices:
            raise ConfigError(
                f"data.index is {config.index}, but data.devices says {config.devices} devices; "
                "the first device has index 0"
            )
        return share_examples(train, config)[config.index]
    if test is None:
        return _held_out(train, np.arange(len(train)), config)
    return Examples(train.x, train.y, test.x, test.y, spec.classes)


def share_examples(train: Dataset, config: DataConfig) -> list[Examples]:
    """One training set shared among devices as `split` says, each with its held-out part."""
    shares = partition(train.y.numpy(), config.devices, config.split, config.seed)
    return [_held_out(train, share, config) for share in shares]


def training_set(config: DataConfig, spec: ModelSpec) -> Dataset:
    """What an experiment shares among its devices."""
    return _load(config, spec)[0]


def evaluation_set(config: DataConfig, spec: ModelSpec) -> Dataset:
    """What a global model is measured on: the source's test set, or all of it if it has none."""
    train, test = _load(config, spec)
    return train if test is None else test


def model_spec(model: ModelConfig, data: DataConfig) -> ModelSpec:
    """The network, labels and normalisation of a federation: as configured, else as in the data."""
    normalised = model.vocabulary or (model.mean and model.std)
    if model.labels and model.shape and normalised:
        train = None
    elif data.source == "none":
        raise ConfigError(
            "without [data], [model] must give labels and shape, and mean and std (images) or "
            "vocabulary (texts): nothing else says what the federation is about"
        )
    else:
        train, _ = load(data.source, _root(data))
    try:
        return ModelSpec(
            name=model.name,
            labels=model.labels or _of(train).labels,
            shape=model.shape or _of(train).shape,
            mean=model.mean or (train.mean if train else ()),
            std=model.std or (train.std if train else ()),
            head=model.head,
            vocabulary=model.vocabulary or (train.vocabulary if train else 0),
        )
    except ValueError as error:
        raise ConfigError(f"[model]: {error}") from None


def _of(train: Dataset | None) -> Dataset:
    assert train is not None
    return train


def _load(config: DataConfig, spec: ModelSpec) -> tuple[Dataset, Dataset | None]:
    """The source's data in the form that the federation's network takes."""
    return load(
        config.source,
        _root(config),
        shape=spec.shape,
        labels=spec.labels,
        vocabulary=spec.vocabulary,
    )


def _held_out(train: Dataset, share: np.ndarray, config: DataConfig) -> Examples:
    kept, held = local_split(train.y.numpy(), share, config.test_share, config.seed)
    mine, test = train.subset(kept), train.subset(held)
    return Examples(mine.x, mine.y, test.x, test.y, len(train.labels))


def _root(config: DataConfig) -> Path | None:
    return Path(config.root) if config.root else None
