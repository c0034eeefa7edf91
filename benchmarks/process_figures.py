"""Memory and CPU time of other processes, read from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MB", "Usage", "trainer_of", "usage"]

MB = 1e6


@dataclass(frozen=True)
class Usage:
    """A process's resident memory, its peak, and its CPU seconds; zeros once it has ended."""

    rss_mb: float = 0.0
    peak_rss_mb: float = 0.0
    cpu_s: float = 0.0


def usage(pid: int) -> Usage:
    """Read the figures of a process."""
    lines = dict(
        line.split(":", 1) for line in _read(pid, "status").splitlines() if line.startswith("Vm")
    )
    if "VmRSS" not in lines:
        return Usage()
    rss, peak = (int(lines[key].split()[0]) * 1024 / MB for key in ("VmRSS", "VmHWM"))
    ticks = [int(field) for field in _read(pid, "stat").rsplit(")", 1)[-1].split()[11:13]]
    return Usage(rss, peak, sum(ticks) / os.sysconf("SC_CLK_TCK"))


def trainer_of(agent: int) -> int | None:
    """The trainer process of an agent; None while it has none."""
    for listed in Path(f"/proc/{agent}/task").glob("*/children"):
        for pid in _text(listed).split():
            if "fededge_agent.trainer" in _read(int(pid), "cmdline"):
                return int(pid)
    return None


def _read(pid: int, name: str) -> str:
    return _text(Path(f"/proc/{pid}/{name}"))


def _text(path: Path) -> str:
    """A file of /proc; empty once the process has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
