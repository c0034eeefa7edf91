"""The entry point by which `import torch` loads the accelerator, if this folder is on the path."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[3])


def load() -> None:
    """Load it; the checkout is last on the path, and only meanwhile: installed packages win."""
    sys.path.append(ROOT)
    try:
        from tests import accelerator

        loaded = accelerator.load()
    finally:
        sys.path.remove(ROOT)
    if isinstance(loaded, str):
        raise ImportError(f"the emulated accelerator cannot be built: {loaded}")
