"""What is remembered of a device's models beside their files: `index.json`."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fededge.errors import StoreError
from fededge.storage.files import read_bounded, replace_file

__all__ = ["Answered", "Entry", "Event", "Record"]

MOST_ENTRIES = 1000
LONGEST_TRAIL = 100
# A thousand entries, each with the longest reason, have a tenth of it.
LARGEST_RECORD = 64 << 20

Event = Literal["added", "promoted", "rejected", "held", "rolled back", "bad", "pinned", "unpinned"]


class Entry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something that happened: to which model (0: one that was not kept), when, and why."""

    event: Event
    number: Annotated[int, Meta(ge=0)]
    time: datetime
    reason: str = ""


class Answered(Struct, frozen=True, forbid_unknown_fields=True):
    """What this device says to a rollout of the coordinator's."""

    run: str
    rollout: Annotated[int, Meta(ge=0)]
    state: str


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """The way that `current` went, which model it is pinned to, which are bad, and the history.

    The last of `trail` is current, the one before it is where a rollback leads. `bad` are hashes
    of weights: whatever is exported from them is never promoted again.
    """

    trail: tuple[int, ...] = ()
    pinned: int | None = None
    bad: tuple[str, ...] = ()
    history: tuple[Entry, ...] = ()
    answered: Answered | None = None

    @classmethod
    def read(cls, path: Path) -> Record:
        try:
            return msgspec.json.decode(read_bounded(path, LARGEST_RECORD), type=cls)
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

    def noting(self, event: Event, number: int, reason: str = "") -> Record:
        written = reason.encode(errors="replace").decode()  # it may come from an app, or a shell
        entry = Entry(event, number, datetime.now(timezone.utc), written)
        history = (*self.history, entry)[-MOST_ENTRIES:]
        return msgspec.structs.replace(self, history=history)

    def at(self, current: int | None) -> Record:
        """The record as the link says: a crash may have come between the two."""
        trail = self.trail
        if current is None:
            trail = ()
        elif current in trail:
            trail = trail[: trail.index(current) + 1]
        else:
            trail = (*trail, current)[-LONGEST_TRAIL:]
        return msgspec.structs.replace(self, trail=trail)
