"""Messages that a device retains where nothing may be retained: a real coordinator clears them."""

from __future__ import annotations

import queue
import time
from pathlib import Path

from fededge.transport.session import Incoming, Session
from tests.security.waiting import TOPICS, Site, status, waiting

VERSION = "000000-0123456789abcdef"
LITTER = [
    TOPICS.device("hostile", "report"),
    *(TOPICS.update("hostile", VERSION, number) for number in range(50)),
    f"{TOPICS.coordinator}/claim",
]


def kept(site: Site) -> set[str]:
    """The topics with retained messages, without those that must be retained."""
    probe = Session(site.session.broker, f"probe-{time.monotonic_ns()}", queue.SimpleQueue())
    probe.subscribe(f"{TOPICS.root}/#")
    probe.start()
    found: set[str] = set()
    try:
        while True:
            event = probe.inbox.get(timeout=0.5)
            if isinstance(event, Incoming):
                event.ack()
                found |= {event.topic} if event.retained else set()
    except queue.Empty:
        return found
    finally:
        probe.stop()


def test_litter_from_before_and_during_a_run_is_cleared_and_not_handled(tmp_path: Path) -> None:
    with waiting(tmp_path) as site:
        for topic in LITTER:
            site.session.publish(topic, b"litter", retain=True)
        site.coordinator.start()
        site.reaches(lambda: not kept(site) & {*LITTER})
        site.mark("cleared")
        for topic in LITTER:
            site.session.publish(topic, b"litter", retain=True)
        site.says("hostile", "status", status("hostile", "x"), retain=True)
        site.reaches(lambda: not kept(site) & {*LITTER})
        assert TOPICS.device("hostile", "status") in kept(site)
        assert TOPICS.device("honest", "status") in kept(site)
        assert "hostile: message on " in site.log
        assert "dropped: it was retained, where nothing may be; it is cleared" in site.log
        assert "not a Report" not in site.log
