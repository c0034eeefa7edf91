"""Matplotlib figures; a lazy import, the only one of matplotlib."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from fededge.errors import ConfigError
from fededge.storage.files import replace_file

__all__ = ["new_figure", "save_figure"]

FORMATS = ("pdf", "png", "svg")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches."""
    try:
        # Not pyplot, which would choose a backend for the whole process.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"a plot needs matplotlib, which cannot be imported ({error}); install fededge[plot]"
        ) from error
    return Figure(figsize=(width, height))


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure in the format of the path's suffix."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ConfigError(f"{path}: a picture must end in one of {', '.join(FORMATS)}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=120, bbox_inches="tight")
    replace_file(path, buffer.getvalue())
    return path
