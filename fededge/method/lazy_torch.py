"""torch for a user's method file: it is loaded when it is first used, at a coordinator never."""

from __future__ import annotations

from fededge._internal.lazy_torch import Tensor, nn, torch

__all__ = ["Tensor", "nn", "torch"]
