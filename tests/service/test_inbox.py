"""The loop of a service: events as they come, ticks in between, and a stop from anywhere."""

from __future__ import annotations

import threading
from typing import Any

from fededge.service.inbox import MOST_TOGETHER, TICK, InboxLoop


class Served:
    """Keeps what it is given; done after so many events."""

    def __init__(self, loop: InboxLoop, most: int) -> None:
        self.loop = loop
        self.most = most
        self.events: list[Any] = []
        self.ticks = 0
        self.pauses: list[int] = []

    @property
    def done(self) -> bool:
        return len(self.events) >= self.most

    def take(self, event: Any) -> None:
        self.events.append(event)

    def pause(self) -> None:
        self.pauses.append(len(self.events))

    def tick(self) -> None:
        self.ticks += 1
        self.loop.stop()


def test_the_loop_ends_when_what_it_serves_is_done() -> None:
    loop = InboxLoop()
    for event in ("a", "b", "c"):
        loop.inbox.put(event)
    served = Served(loop, 2)
    loop.run(served)
    assert served.events == ["a", "b"]


def test_a_pause_comes_when_no_event_waits() -> None:
    loop = InboxLoop()
    for event in ("a", "b", "c"):
        loop.inbox.put(event)
    served = Served(loop, 3)
    loop.run(served)
    assert served.pauses == [3]


def test_a_pause_comes_though_the_inbox_is_never_empty() -> None:
    loop = InboxLoop()
    for event in range(2 * MOST_TOGETHER + 1):
        loop.inbox.put(event)
    served = Served(loop, 2 * MOST_TOGETHER)
    loop.run(served)
    assert served.pauses == [MOST_TOGETHER, 2 * MOST_TOGETHER]


def test_a_tick_comes_though_the_inbox_is_never_empty() -> None:
    times = iter([0.0, 0.0, 0.0, TICK, TICK, TICK, TICK])
    loop = InboxLoop(lambda: next(times))
    for event in "abcdef":
        loop.inbox.put(event)
    served = Served(loop, 99)
    loop.run(served)
    assert (served.events, served.ticks) == (["a", "b"], 1)


def test_a_stop_from_another_thread_wakes_the_loop() -> None:
    loop = InboxLoop(lambda: 0.0)
    served = Served(loop, 99)
    runs = threading.Thread(target=loop.run, args=(served,))
    runs.start()
    loop.stop()
    runs.join(5)
    assert not runs.is_alive()
    assert (served.events, served.ticks) == ([], 0)
