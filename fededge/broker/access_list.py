"""Who may read and write which topics of a federation, as an ACL file of Mosquitto."""

from __future__ import annotations

from fededge.wire.topics import Topics

__all__ = ["COORDINATOR", "access_list"]

COORDINATOR = "coordinator"
"""The coordinator's user name, or the common name in its certificate."""

USER = "%u"
"""Mosquitto puts the user name in its place; one with a '/', '+' or '#' in it is let nowhere."""


def access_list(federation: str) -> str:
    """A device is confined to its own topics: those that have its user name as the device id."""
    topics = Topics(federation)
    coordinator = [
        *_rules("topic", "write", topics.state, topics.model("+")),
        *_rules("topic", "write", *(topics.device("+", kind) for kind in ("task", "reply"))),
        *_rules("topic", "read", topics.state, topics.device("+", "status")),
        # It writes there to clear what a device has retained: nothing may be.
        *_rules("topic", "readwrite", topics.device("+", "report"), topics.update("+", "+")),
        *_rules(
            "topic", "readwrite", f"{topics.coordinator}/status", f"{topics.coordinator}/claim"
        ),
    ]
    own = [topics.device(USER, kind) for kind in ("status", "claim")]
    device = [
        *_rules("pattern", "read", topics.state, topics.model("+"), f"{topics.coordinator}/status"),
        *_rules("pattern", "read", *(topics.device(USER, kind) for kind in ("task", "reply"))),
        *_rules("pattern", "readwrite", *own),
        *_rules("pattern", "write", topics.device(USER, "report"), topics.update(USER, "+")),
    ]
    lines = [f"user {COORDINATOR}", *coordinator, "", "# every device, below its own id", *device]
    return "\n".join(lines) + "\n"


def _rules(kind: str, access: str, *filters: str) -> list[str]:
    return [f"{kind} {access} {topic}" for topic in filters]
