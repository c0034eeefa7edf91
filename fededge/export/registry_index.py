"""The registry's index, `index.json`: history, pin and bad models of a device."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fededge.errors import StoreError
from fededge.storage.files import read_bounded, replace_file

__all__ = ["Event", "IndexEntry", "RegistryIndex", "RolloutAnswer"]

MOST_ENTRIES = 1000
LONGEST_TRAIL = 100
# Ten times the size of a thousand entries with the longest reasons.
LARGEST_INDEX = 64 << 20

Event = Literal["added", "promoted", "rejected", "held", "rolled back", "bad", "pinned", "unpinned"]


class IndexEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An event in the history: its model (0: one that was not kept), time and reason."""

    event: Event
    number: Annotated[int, Meta(ge=0)]
    time: datetime
    reason: str = ""


class RolloutAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """This device's answer to a rollout of the coordinator."""

    run: str
    rollout: Annotated[int, Meta(ge=0)]
    state: str


class RegistryIndex(Struct, frozen=True, forbid_unknown_fields=True):
    """The past and pinned targets of `current`, the bad models, and the history.

    The last model of `trail` is current; a rollback goes to the one before it. `bad` holds hashes
    of weights: no export of them is ever promoted again.
    """

    trail: tuple[int, ...] = ()
    pinned: int | None = None
    bad: tuple[str, ...] = ()
    history: tuple[IndexEntry, ...] = ()
    answered: RolloutAnswer | None = None

    @classmethod
    def read(cls, path: Path) -> RegistryIndex:
        try:
            return msgspec.json.decode(read_bounded(path, LARGEST_INDEX), type=cls)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror})") from None
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"{path}: unreadable ({error}); restore it, or remove it if no model was reported "
                "bad and none is pinned"
            ) from None

    def write(self, path: Path) -> None:
        replace_file(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    def with_entry(self, event: Event, number: int, reason: str = "") -> RegistryIndex:
        # A reason from an app or a shell may have lone surrogates, which JSON cannot hold.
        text = reason.encode(errors="replace").decode()
        entry = IndexEntry(event, number, datetime.now(timezone.utc), text)
        history = (*self.history, entry)[-MOST_ENTRIES:]
        return msgspec.structs.replace(self, history=history)

    def with_current(self, current: int | None) -> RegistryIndex:
        """Return the index with this current model: after a crash the link may be ahead of it."""
        trail = self.trail
        if current is None:
            trail = ()
        elif current in trail:
            trail = trail[: trail.index(current) + 1]
        else:
            trail = (*trail, current)[-LONGEST_TRAIL:]
        return msgspec.structs.replace(self, trail=trail)
