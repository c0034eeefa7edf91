"""Presets: the papers' settings by name, and smaller versions of them.

`fedacd-cifar10-b0.1` is the paper's setting; `fedacd-cifar10-b0.1-small` has fewer images and
rounds, and takes minutes on two cores, with the same split and shares. `table-…` are the settings
of docs/results.md.
"""

from __future__ import annotations

from typing import Any

from fededge._internal.suggestions import unknown
from fededge.errors import ConfigError

__all__ = ["preset", "presets"]

SMALL = {"limit": 12_000, "rounds": 20, "epochs": 2}


def preset(name: str) -> dict[str, Any]:
    """Return the settings of a preset."""
    known = presets()
    if name not in known:
        raise ConfigError(unknown("preset", name, known))
    return dict(known[name])


def presets() -> dict[str, dict[str, Any]]:
    """Return all presets by name, each also in its small version."""
    full = {**_fedacd(), **_fedala(), **_fedbalance(), **_map(), **_lfd()}
    small = {f"{name}-small": {**settings, **SMALL} for name, settings in full.items()}
    return {**full, **small, **_tables()}


def _tables() -> dict[str, dict[str, Any]]:
    """Return the settings of docs/results.md: every method under one strong skew, on two cores."""
    base = {"model": "lenet5", "split": "dirichlet:0.1", "rounds": 20, "measure_every": 8}
    return {
        "table-fashion-mnist": {
            **base,
            "source": "fashion-mnist",
            "limit": 12_000,
            "devices": 20,
            "participants": 8,
            "epochs": 5,
        },
        "table-cifar10": {
            **base,
            "source": "cifar10",
            "limit": 5_000,
            "devices": 10,
            "participants": 0,
            "epochs": 2,
            "lr": 0.02,
            "measure_every": 9,
        },
    }


def _fedacd() -> dict[str, dict[str, Any]]:
    base = {
        "method": "fedacd+mixup",
        "devices": 20,
        "participants": 8,
        "rounds": 200,
        "epochs": 5,
        "batch_size": 64,
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 1e-5,
        "model": "cnn4",
    }
    larger = {"model": "resnet18", "weight_decay": 1e-3}
    sources: dict[str, dict[str, Any]] = {
        "cifar10": {},
        "cifar100": {},
        "fashion-mnist": {},
        "tiny-imagenet": larger,
    }
    return {
        f"fedacd-{source}-b{beta}": {
            **base,
            **more,
            "source": source,
            "split": f"dirichlet:{beta}",
        }
        for source, more in sources.items()
        for beta in (0.3, 0.1, 0.05)
    }


def _fedala() -> dict[str, dict[str, Any]]:
    base = {
        "method": "fedala",
        "devices": 20,
        "participants": 0,
        "rounds": 2000,
        "epochs": 1,
        "batch_size": 10,
        "lr": 0.005,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "model": "cnn4",
        "test_share": 0.25,
    }
    faster = {"lr": 0.1}
    sources: dict[str, dict[str, Any]] = {
        "cifar10": {},
        "cifar100": {},
        "mnist": faster,
        "tiny-imagenet": {},
        "tiny-imagenet-resnet18": {"source": "tiny-imagenet", "model": "resnet18", **faster},
        "agnews": {"model": "fasttext", **faster},
    }
    splits = {(source, "b0.1"): "dirichlet:0.1" for source in sources}
    classes = {"cifar10": 2, "cifar100": 10, "mnist": 2}
    splits |= {(source, "path"): f"pathological:{k}" for source, k in classes.items()}
    return {
        f"fedala-{source}-{name}": {**base, "source": source, **sources[source], "split": split}
        for (source, name), split in splits.items()
    }


def _fedbalance() -> dict[str, dict[str, Any]]:
    base = {
        "method": "fedbalance",
        "devices": 20,
        "participants": 4,
        "rounds": 500,
        "epochs": 10,
        "batch_size": 64,
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 1e-5,
    }
    networks = {"cifar10": "resnet8", "cifar100": "resnet32"}
    return {
        f"fedbalance-{source}-b{beta}": {
            **base,
            "source": source,
            "model": model,
            "split": f"dirichlet:{beta}",
        }
        for source, model in networks.items()
        for beta in (0.1, 0.3, 0.5)
    }


def _map() -> dict[str, dict[str, Any]]:
    base = {
        "method": "map",
        "devices": 100,
        "participants": 20,
        "rounds": 150,
        "batch_size": 64,
        "lr": 0.03,
        "momentum": 0.9,
        "weight_decay": 1e-5,
        "split": "incomplete",
        "head": "bias-free",
        "clip_norm": 100.0,
    }
    networks = {"fashion-mnist": ("lenet", 5), "cifar10": ("tfcnn", 10), "cifar100": ("vgg8", 20)}
    return {
        f"map-{source}": {**base, "source": source, "model": model, "epochs": epochs}
        for source, (model, epochs) in networks.items()
    }


def _lfd() -> dict[str, dict[str, Any]]:
    base = {
        "method": "lfd",
        "devices": 10,
        "participants": 0,
        "rounds": 100,
        "epochs": 10,
        "batch_size": 128,
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 1e-5,
        "model": "lfd-cnn",
    }
    temperatures = {"cifar10": 0.1, "cifar100": 0.05}
    return {
        f"lfd-{source}-b{beta}": {
            **base,
            "source": source,
            "head": f"cosine:{tau}",
            "split": f"dirichlet:{beta}",
        }
        for source, tau in temperatures.items()
        for beta in (0.5, 0.1, 0.05)
    }
