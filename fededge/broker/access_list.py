"""Mosquitto ACL file of a federation: topics that coordinator and devices may read and write."""

from __future__ import annotations

from fededge.wire.topics import Topics

__all__ = ["COORDINATOR", "access_list"]

COORDINATOR = "coordinator"
"""User name of the coordinator, or the common name in its certificate."""

USER = "%u"
"""Mosquitto's placeholder for the user name; it denies names that contain '/', '+' or '#'."""


def access_list(federation: str) -> str:
    """The ACL text. A device's user name is its device id, which confines it to its own topics."""
    topics = Topics(federation)
    coordinator = [
        *_rules("topic", "write", topics.state, topics.model("+")),
        *_rules("topic", "write", *(topics.device("+", kind) for kind in ("task", "reply"))),
        *_rules("topic", "read", topics.state, topics.device("+", "status")),
        # Write access lets it clear messages that a device has retained against the rules.
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
