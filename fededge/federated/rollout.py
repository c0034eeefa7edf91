"""Membership in a staged rollout: each device computes it by itself, without a list."""

from __future__ import annotations

import hashlib

from fededge.wire.messages import Rollout

__all__ = ["may_use", "place"]


def place(run: str, number: int, device: str) -> float:
    """A device's place in a rollout: a pseudo-random number from 0 to 1, new for each rollout."""
    digest = hashlib.sha256(f"rollout/{run}/{number}/{device}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def may_use(rollout: Rollout | None, run: str, device: str, trained_in: int) -> bool:
    """Return True if a device may use a model that it trained in round `trained_in`."""
    if rollout is None or trained_in < rollout.released:
        return True
    reached = place(run, rollout.number, device) < rollout.cut
    return reached and rollout.after <= trained_in < rollout.until
