"""The flag `--data SOURCE[:PATH]`, which all commands that load data share."""

from __future__ import annotations

from pathlib import Path

from fededge.data import sources
from fededge.errors import ConfigError

__all__ = ["split_source"]


def split_source(text: str) -> tuple[str, str]:
    """Split `cifar10:/data` into source and root."""
    source, _, root = text.partition(":")
    if source not in sources():
        raise ConfigError(f"--data {text}: unknown source; known: {', '.join(sources())}")
    return source, str(Path(root).absolute()) if root else ""
