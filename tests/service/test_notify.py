"""systemd's notification protocol, on real sockets, and the watchdog that only progress feeds."""

from __future__ import annotations

import os
import queue
import socket
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from fededge.service.inbox import InboxLoop
from fededge.service.notify import Notifier
from fededge.service.watchdog import SIGNS, Watchdog


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A socket as systemd has it, and its address in the environment."""
    name = str(tmp_path / "notify") if request.param == "file" else f"@{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind("\0" + name[1:] if name.startswith("@") else name)
        one.settimeout(5)
        yield one, name


def test_the_manager_hears_each_message(manager: Any) -> None:
    listener, name = manager
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": name})
    assert notifier.active
    notifier.ready()
    notifier.status("waiting\nREADY=1")
    notifier.alive()
    notifier.stopping()
    heard = [listener.recv(4096).decode() for _ in range(4)]
    assert heard == ["READY=1", "STATUS=waiting\\nREADY=1", "WATCHDOG=1", "STOPPING=1"]


def test_without_a_manager_nothing_is_sent() -> None:
    notifier = Notifier.from_environment({})
    assert not notifier.active
    notifier.ready()


def test_a_manager_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "gone")).ready()


@pytest.mark.parametrize(
    ("pid", "micros", "seconds"),
    [(None, "3000000", 3.0), ("mine", "500000", 0.5), ("1", "3000000", 0.0), (None, "x", 0.0)],
)
def test_the_watchdog_is_for_the_process_that_it_names(
    pid: str | None, micros: str, seconds: float
) -> None:
    environment = {"WATCHDOG_USEC": micros}
    if pid:
        environment["WATCHDOG_PID"] = str(os.getpid()) if pid == "mine" else pid
    assert Notifier.from_environment(environment).watchdog == seconds


class Feeds(Notifier):
    """Counts how often the watchdog is fed."""

    def __init__(self, watchdog: float) -> None:
        super().__init__("", watchdog)
        self.count = 0

    def alive(self) -> None:
        self.count += 1


def test_progress_feeds_the_watchdog_at_a_bounded_rate() -> None:
    now = 0.0
    feeds = Feeds(8.0)
    watchdog = Watchdog(feeds, lambda: now)
    for step in range(1000):
        now = step / 10  # 100 s of busy loop
        watchdog.progress()
    assert feeds.count == 100 / (8.0 / SIGNS)


def test_without_a_limit_nobody_is_fed() -> None:
    feeds = Feeds(0.0)
    Watchdog(feeds, lambda: 1.0).progress()
    assert feeds.count == 0


class Hanging:
    """Handles events until one hangs."""

    done = False

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.freed = threading.Event()

    def take(self, event: str) -> None:
        if event == "hang":
            self.hangs.set()
            self.freed.wait(30)

    def tick(self) -> None:
        pass


def test_a_loop_that_hangs_in_an_event_makes_no_progress() -> None:
    progress: queue.SimpleQueue[None] = queue.SimpleQueue()
    loop, served = InboxLoop(progress=lambda: progress.put(None)), Hanging()
    loop.inbox.put("work")
    loop.inbox.put("hang")
    loop.inbox.put("work")
    runs = threading.Thread(target=loop.run, args=(served,))
    runs.start()
    assert served.hangs.wait(10)
    assert progress.qsize() == 1  # the first event alone
    served.freed.set()
    loop.stop()
    runs.join(10)
    assert not runs.is_alive()
