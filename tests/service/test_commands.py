"""The command queue: one batch at a time, and a full disk drops the rest of a batch."""

from __future__ import annotations

import pytest

from fededge.errors import DiskFullError, WireError
from fededge.service.commands import CommandQueue


class Script:
    """A machine that answers each event with the commands of a script."""

    def __init__(self, **script: list[str]) -> None:
        self.script = script
        self.seen: list[object] = []
        self.full: list[str] = []
        self.queue: CommandQueue[str, str] = CommandQueue(
            self, self.carry_out, self.on_full, lambda: 7.0, self.seen.append
        )

    def handle(self, event: str, now: float) -> list[str]:
        assert now == 7.0
        if event == "bad":
            raise WireError("no such event")
        return self.script[event]

    def carry_out(self, command: str) -> None:
        if command == "disk full":
            raise DiskFullError("no space")
        if command == "drop rest":
            self.queue.drop_rest()
        if command.startswith("raise "):
            self.queue.handle(command.removeprefix("raise "))

    def on_full(self, command: str, error: DiskFullError) -> None:
        self.full.append(f"{command}: {error}")
        self.queue.handle("failed")


def test_an_event_that_comes_up_in_a_batch_waits_for_its_end() -> None:
    script = Script(first=["raise second", "a"], second=["b"])
    script.queue.handle("first")
    assert script.seen == ["first", "raise second", "a", "second", "b"]


def test_a_command_that_finds_the_disk_full_drops_the_rest_of_its_batch_alone() -> None:
    script = Script(first=["raise second", "disk full", "a"], second=["b"], failed=["c"])
    script.queue.handle("first")
    assert script.full == ["disk full: no space"]
    assert script.seen == ["first", "raise second", "disk full", "second", "b", "failed", "c"]


def test_a_command_can_drop_the_rest_of_its_batch_alone() -> None:
    script = Script(first=["raise second", "drop rest", "a"], second=["b"])
    script.queue.handle("first")
    assert script.seen == ["first", "raise second", "drop rest", "second", "b"]


def test_commands_of_the_shell_s_own_are_a_batch_too() -> None:
    script = Script(first=["b"], failed=[])
    script.queue.do("raise first", "disk full", "a")
    assert script.seen == ["raise first", "disk full", "first", "b", "failed"]


def test_an_event_that_is_refused_leaves_the_queue_working() -> None:
    script = Script(first=["a"])
    with pytest.raises(WireError):
        script.queue.handle("bad")
    script.queue.handle("first")
    assert script.seen == ["bad", "first", "a"]
