"""The networks, data and devices that these tests train with."""

from __future__ import annotations

from tests.training_fixtures import deep, examples, plain, trainer, turn

__all__ = ["deep", "examples", "plain", "trainer", "turn"]
