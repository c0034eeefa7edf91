"""The command lines of the services that benchmarks start."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["service_command"]

ENDS = {"coordinator": ["--exit-when-done"], "agent": []}


def service_command(role: str, config: Path) -> list[str]:
    """Run a coordinator until its rounds are done, or an agent."""
    return [sys.executable, "-m", "fededge", role, *ENDS[role], "--config", str(config)]
