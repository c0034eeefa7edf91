"""Errors of the API with a status code of their own."""

from __future__ import annotations

from fededge.errors import RefusedError

__all__ = ["BusyError", "NotFoundError"]


class NotFoundError(RefusedError):
    """There is no such thing."""


class BusyError(RefusedError):
    """The coordinator cannot answer now."""
