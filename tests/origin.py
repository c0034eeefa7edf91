"""The origin of the personal models that the tests export."""

from __future__ import annotations

from datetime import datetime, timezone

from fededge.export import Origin

__all__ = ["ORIGIN"]

ORIGIN = Origin(
    federation="yard",
    device="camera-7",
    method="fedavg+map",
    version="000012-0123456789abcdef",
    round=34,
    accuracy=0.875,
    created=datetime(2025, 3, 1, 12, 30, tzinfo=timezone.utc),
)
