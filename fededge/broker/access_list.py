"""Mosquitto ACL file of a federation: topics that coordinator and devices may read and write."""

from __future__ import annotations

from collections.abc import Iterator

from fededge.broker.dynamic_security import ANSWER, CONTROL
from fededge.wire.topics import ROOT, Topics

__all__ = ["COORDINATOR", "ENROL", "access_list", "denied_users", "missing_rules", "with_rules"]

COORDINATOR = "coordinator"
"""User name of the coordinator, or the common name in its certificate."""

ENROL = "enrol"
"""User name of boxes that are not enrolled yet: they may ask for a certificate, nothing else."""

USER = "%u"
"""Mosquitto's placeholder for the user name; it denies names that contain '/', '+' or '#'."""

ENROLMENT = ("request", "answer")

EVERYTHING = frozenset({"#", f"{ROOT.split('/')[0]}/#", f"{ROOT}/#"})
"""Topic filters whose denial shuts a user out of every federation."""


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
        *_rules("topic", "write", CONTROL),  # to shut a revoked device out
        *_rules("topic", "read", ANSWER),
        # Write access to the request lets it be cleared.
        *_rules("topic", "readwrite", *(topics.enrolment("+", kind) for kind in ENROLMENT)),
    ]
    own = [topics.device(USER, kind) for kind in ("status", "claim")]
    device = [
        *_rules("pattern", "read", topics.state, topics.model("+"), f"{topics.coordinator}/status"),
        *_rules("pattern", "read", *(topics.device(USER, kind) for kind in ("task", "reply"))),
        *_rules("pattern", "readwrite", *own),
        *_rules("pattern", "write", topics.device(USER, "report"), topics.update(USER, "+")),
    ]
    lines = [f"user {COORDINATOR}", *coordinator, "", f"user {ENROL}", *_enrolling(topics)]
    return _joined([*lines, "", "# every device, below its own id", *device])


def _enrolling(topics: Topics) -> list[str]:
    """Boxes that are not enrolled yet: the rules of every device are not theirs."""
    others = ("state", "model/#", "coordinator/#", "device/#")
    return [
        *_rules("topic", "deny", *(f"{topics.root}/{each}" for each in others)),
        *_rules("topic", "write", topics.enrolment("+", "request")),
        *_rules("topic", "read", topics.enrolment("+", "answer")),
    ]


def _rules(kind: str, access: str, *filters: str) -> list[str]:
    return [f"{kind} {access} {topic}" for topic in filters]


def missing_rules(text: str, federation: str) -> list[tuple[str, str]]:
    """The federation's rules that an ACL lacks, each with its user ("" for every device).

    A rule that an operator has commented out is not missing: it stays out.
    """
    there = {*_parsed(text), *_parsed(text.replace("#", " "))}
    return [rule for rule in _parsed(access_list(federation)) if rule not in there]


def with_rules(text: str, federation: str) -> str:
    """The ACL with the federation's missing rules added at its end; nothing else changes."""
    missing = missing_rules(text, federation)
    if not missing:
        return text
    lines = [f"# federation {federation}"]
    for user in dict.fromkeys(user for user, _ in missing):
        lines.append(f"user {user}" if user else "# every device, below its own id")
        lines += [rule for owner, rule in missing if owner == user]
    head = text if text.endswith("\n") or not text else f"{text}\n"
    return f"{head}\n{_joined(lines)}" if head else _joined(lines)


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def denied_users(text: str) -> list[str]:
    """The users that an ACL denies every topic, in their order."""
    denied = (user for user, rule in _parsed(text) if _denies_all(rule))
    return list(dict.fromkeys(user for user in denied if user))


def _denies_all(rule: str) -> bool:
    words = rule.split()
    return words[:2] == ["topic", "deny"] and words[-1] in EVERYTHING


def _parsed(text: str) -> Iterator[tuple[str, str]]:
    """The rules of an ACL with their users. Patterns belong to every user, wherever they stand."""
    user = ""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["user"]:
            user = " ".join(words[1:])
        elif words[:1] == ["topic"]:
            yield user, " ".join(words)
        elif words[:1] == ["pattern"]:
            yield "", " ".join(words)
