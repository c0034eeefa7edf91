"""Names of files beside the index in an agent's state folder."""

from __future__ import annotations

__all__ = ["LEDGER", "TRUST"]

LEDGER = "ledger.json"
"""The count of the bytes that left the device."""

TRUST = "trust.json"
"""The newest signed state that the device accepted."""
