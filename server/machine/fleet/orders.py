"""Orders: what an operator tells the coordinator to do. The journal has each before it counts.

To add one: a class here and its place in `Order`, a function in `store/order_tables.py` that
writes it down, and one in `EFFECTS` of `machine/order_effects.py` that carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from fededge.errors import RefusedError
from fededge.wire.messages import DeviceId, Line, Version
from fededge_server.machine.settings import Settings

__all__ = [
    "ApplyOrder",
    "ClearStatus",
    "ControlUser",
    "DeviceOrder",
    "DrainOrder",
    "ForgetOrder",
    "Order",
    "OrderGiven",
    "Outcome",
    "PauseOrder",
    "PinOrder",
    "QuarantineOrder",
    "ReleaseOrder",
    "RestOrder",
    "ResumeOrder",
    "RevokeOrder",
    "UnpinOrder",
    "VersionOrder",
    "read_order",
]

LONGEST_REST = 366 * 24 * 3600.0


class BaseOrder(Struct, frozen=True, forbid_unknown_fields=True, tag_field="order"):
    """Base of all orders; the field `order` has the name."""

    @property
    def name(self) -> str:
        return str(type(self).__struct_config__.tag)


class DeviceOrder(BaseOrder, frozen=True):
    """An order for one device."""

    device: DeviceId


class DrainOrder(DeviceOrder, frozen=True, tag="drain"):
    """The device ends its turn, and is asked for no other."""


class RestOrder(DeviceOrder, frozen=True, tag="rest"):
    """The same, for so many seconds."""

    seconds: Annotated[float, Meta(gt=0, le=LONGEST_REST)]


class QuarantineOrder(DeviceOrder, frozen=True, tag="quarantine"):
    """Its updates are refused, and it is not asked, until it is released."""

    reason: Line = ""


class RevokeOrder(DeviceOrder, frozen=True, tag="revoke"):
    """The same, and the broker shuts it out. The device may be one that nobody has heard of."""

    reason: Line = ""


class ReleaseOrder(DeviceOrder, frozen=True, tag="release"):
    """No order is in force for the device any more, and no quarantine."""


class ForgetOrder(DeviceOrder, frozen=True, tag="forget"):
    """All records of the device go: if it joins again, it is new."""


class PauseOrder(BaseOrder, frozen=True, tag="pause"):
    """No new round begins; an open one ends."""


class ResumeOrder(BaseOrder, frozen=True, tag="resume"):
    """Rounds begin again."""


class ApplyOrder(BaseOrder, frozen=True, tag="apply"):
    """These settings are in force from the next round that begins."""

    settings: Settings


class VersionOrder(BaseOrder, frozen=True):
    """An order about one version, by its whole name."""

    version: Version


class PinOrder(VersionOrder, frozen=True, tag="pin"):
    """The version's files are never pruned."""


class UnpinOrder(VersionOrder, frozen=True, tag="unpin"):
    """They are pruned like any other's."""


Order = (
    DrainOrder
    | RestOrder
    | QuarantineOrder
    | RevokeOrder
    | ReleaseOrder
    | ForgetOrder
    | PauseOrder
    | ResumeOrder
    | ApplyOrder
    | PinOrder
    | UnpinOrder
)


@dataclass(frozen=True)
class Outcome:
    """The answer to an order: False if all was as ordered already, and one sentence."""

    changed: bool
    text: str


@dataclass(frozen=True)
class OrderGiven:
    """An event: the journal has this order, and it takes effect now."""

    order: Any


@dataclass(frozen=True)
class ClearStatus:
    """A command: remove the status of a forgotten device from the broker."""

    device: str


@dataclass(frozen=True)
class ControlUser:
    """A command: have the broker shut a device out, or let it in again."""

    device: str
    denied: bool


def read_order(data: bytes) -> Any:
    """An order from its JSON; RefusedError with a sentence if it is not one."""
    try:
        return msgspec.json.decode(data, type=Order)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RefusedError(f"not an order: {str(error)[:300]}") from None
