"""Methods of a user's own whose coordinator half fails."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_methods"]

MOODY = '''
"""Fails on what one device may report."""

from dataclasses import dataclass
from typing import ClassVar

from fededge.method.base import Finish, Method


@dataclass(frozen=True)
class Moody(Method):
    name: ClassVar[str] = "moody"
    scalars: ClassVar[frozenset[str]] = frozenset({"mood"})
    where: str = "step"

    def finish(self, r):
        return Finish(scalars={"mood": 0.0})

    def weight(self, scalars):
        return {0.0: 1.0}[scalars["mood"]] if self.where == "weight" else 1.0

    def step(self, w, merged, state):
        for report in merged.scalars.values():
            {0.0: 1.0}[report["mood"]]
        return merged.mean, state
'''

BROKEN = '''
"""Fails whatever is reported."""

from dataclasses import dataclass
from typing import ClassVar

from fededge.method.base import Method


@dataclass(frozen=True)
class Broken(Method):
    name: ClassVar[str] = "broken"

    def step(self, w, merged, state):
        raise ValueError("this step was never finished")
'''


def write_methods(folder: Path) -> list[str]:
    """Both files; each as a configuration names it."""
    for name, text in (("moody", MOODY), ("broken", BROKEN)):
        (folder / f"{name}.py").write_text(text)
    return [f"{folder}/moody.py:Moody", f"{folder}/broken.py:Broken"]
