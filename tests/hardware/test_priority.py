"""Priority, in processes of their own: it cannot be raised again without a privilege."""

from __future__ import annotations

import json
import logging
import platform
import subprocess
import sys

import pytest

from fededge.errors import ConfigError
from fededge.hardware import priority
from fededge.hardware.priority import IDLE_PRIORITY, Priority, check_ionice

PROGRAM = """
import ctypes, json, os, platform, sys
from fededge.hardware.priority import Priority, apply
apply(Priority(**json.loads(sys.argv[1])))
number = {"x86_64": 252, "aarch64": 31}[platform.machine()]
ioprio = ctypes.CDLL(None).syscall(ctypes.c_long(number), 1, 0)
mps = os.environ.get("CUDA_MPS_CLIENT_PRIORITY")
print(json.dumps([os.getpriority(os.PRIO_PROCESS, 0), ioprio, mps]))
"""


def applied(**keys: object) -> list[object]:
    command = [sys.executable, "-c", PROGRAM, json.dumps(keys)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(
    platform.machine() not in priority.IOPRIO_SET,
    reason="the number of ioprio_set is known for x86_64 and aarch64 only",
)
def test_a_process_stands_back() -> None:
    found = applied(nice=19, ionice="idle", stream_priority="low")
    assert found == [19, IDLE_PRIORITY, "1"]
    assert applied(nice=19, ionice="best-effort:6")[1:] == [2 << 13 | 6, None]


def test_by_default_nothing_changes() -> None:
    assert applied() == applied(nice=0)


def test_a_process_that_is_lower_already_stays_so() -> None:
    command = ["nice", "-n", "19", sys.executable, "-c", PROGRAM, json.dumps({"nice": 5})]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)[0] == 19
    assert done.stderr == ""


@pytest.mark.skipif(
    platform.machine() not in priority.IOPRIO_SET,
    reason="the number of ioprio_set is known for x86_64 and aarch64 only",
)
def test_threads_that_run_already_stand_back_too() -> None:
    """As those of a pool that a package started when it was imported."""
    program = """
import ctypes, json, os, platform, threading
from fededge.hardware.priority import Priority, apply
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
apply(Priority(nice=19, ionice="idle"))
number = {"x86_64": 252, "aarch64": 31}[platform.machine()]
ioprio = ctypes.CDLL(None).syscall(ctypes.c_long(number), 1, thread.native_id)
print(json.dumps([os.getpriority(os.PRIO_PROCESS, thread.native_id), ioprio]))
stop.set()
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert json.loads(done.stdout) == [19, IDLE_PRIORITY]


def test_a_thread_that_ends_meanwhile_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lowered = list[int]()

    def lower(_: int, thread: int, __: int) -> None:
        if thread == 8:
            raise ProcessLookupError(3, "No such process")
        lowered.append(thread)

    monkeypatch.setattr("os.listdir", lambda _: ["7", "8", "9"])
    monkeypatch.setattr("os.getpriority", lambda *_: 0)
    monkeypatch.setattr("os.setpriority", lower)
    priority.apply(Priority(nice=5))
    assert (lowered, caplog.messages) == ([0, 7, 9], [])


def test_a_refusal_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As under a systemd unit that forbids these calls."""

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.setpriority", refused)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with caplog.at_level(logging.WARNING):
        priority.apply(Priority(nice=5, ionice="idle"))
    first, second = (record.message for record in caplog.records)
    assert "refuses nice = 5 (Operation not permitted)" in first
    assert "refuses ionice = 'idle' (not known on riscv64)" in second


@pytest.mark.parametrize("text", ["best-effort", "best-effort:8", "realtime:0", "Idle"])
def test_an_unknown_ionice_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=f"ionice is '{text}'; allowed: 'idle'"):
        check_ionice(text)
